#!/bin/sh
# Prints the secrets of replicas and executors, from a directory of `raftcron certs`:
#   deploy/kubernetes/secrets.sh authority | kubectl apply -f -
set -eu

authority=${1:?the directory of the authority}
namespace=${2:-raftcron}

encoded() {
    base64 < "$1" | tr -d '\n'
}

# One secret for a kind of certificate: ca.pem, and NAME.cert.pem and NAME.key.pem of each name.
secret() {
    printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: raftcron-%s-tls\n' "$1"
    printf '  namespace: %s\ndata:\n  ca.pem: %s\n' "$namespace" "$(encoded "$authority/ca.pem")"
    for folder in "$authority/$1"-*; do
        for part in cert key; do
            printf '  %s.%s.pem: %s\n' "${folder##*/"$1"-}" "$part" \
                "$(encoded "$folder/$part.pem")"
        done
    done
}

sed "s/^  name: raftcron$/  name: $namespace/" "$(dirname "$0")/namespace.yaml"
secret replica
secret executor
