/* The peer of bench.starts: a loop of posix_spawn and wait, as fast as the C library has it.

   usage: starts COUNT IN_FLIGHT PROGRAM [session]
   Starts PROGRAM COUNT times, IN_FLIGHT of them at once, and prints
   {"seconds": wall time, "self_us": own CPU time, "children_us": that of what was started}.
   With `session` each has a session of its own, as a command of an executor has: by it alone a
   kernel with autogroups shares out the cores differently. */

#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

static char *const no_environment[] = {NULL};

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static long cpu_us(int who)
{
    struct rusage used;
    getrusage(who, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000L + used.ru_utime.tv_usec +
           used.ru_stime.tv_usec;
}

int main(int count_of_arguments, char **arguments)
{
    if (count_of_arguments < 4) {
        fprintf(stderr, "usage: starts COUNT IN_FLIGHT PROGRAM [session]\n");
        return 2;
    }
    long count = atol(arguments[1]), in_flight = atol(arguments[2]);
    char *const command[] = {arguments[3], NULL};
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    if (count_of_arguments > 4)
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    long started = 0, ended = 0;
    double began = now();
    while (ended < count) {
        while (started < count && started - ended < in_flight) {
            pid_t pid;
            int problem =
                posix_spawn(&pid, command[0], NULL, &attributes, command, no_environment);
            if (problem != 0) {
                fprintf(stderr, "starts: %s: %s\n", command[0], strerror(problem));
                return 1;
            }
            started++;
        }
        int status;
        if (wait(&status) < 0 || status != 0) {
            fprintf(stderr, "starts: %s: ended with %d\n", command[0], status);
            return 1;
        }
        ended++;
    }
    printf("{\"seconds\": %.6f, \"self_us\": %ld, \"children_us\": %ld}\n", now() - began,
           cpu_us(RUSAGE_SELF), cpu_us(RUSAGE_CHILDREN));
    return 0;
}
