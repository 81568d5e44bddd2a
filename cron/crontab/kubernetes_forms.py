"""Forms of the values of a CronJob's keys: one of another form is refused by the API.

A text in the place of a list has letters, and a number in the place of a text is true or false, so
such a value would mean something here.
"""

from __future__ import annotations

import enum
from typing import Final

from cron.errors import InvalidInput


class Form(enum.Enum):
    """How the API reads a value; null is none, whatever the form."""

    TEXT = "a text"
    TEXTS = "a list of texts"
    NUMBER = "a number of Kubernetes"
    FLAG = "true or false"
    MAP = "a map"
    MAPS = "a list of maps"


_FORMS: Final[dict[Form, str]] = {
    Form.TEXT: (
        "apiVersion kind namespace schedule timeZone concurrencyPolicy restartPolicy image name "
        "workingDir key completionMode managedBy nodeName runtimeClassName dnsPolicy "
        "priorityClassName preemptionPolicy hostname subdomain serviceAccount serviceAccountName "
        "imagePullPolicy terminationMessagePath terminationMessagePolicy schedulerName"
    ),
    Form.TEXTS: "command args",
    Form.NUMBER: (
        "startingDeadlineSeconds activeDeadlineSeconds backoffLimit completions parallelism "
        "successfulJobsHistoryLimit failedJobsHistoryLimit ttlSecondsAfterFinished priority "
        "terminationGracePeriodSeconds backoffLimitPerIndex maxFailedIndexes"
    ),
    Form.FLAG: "suspend optional hostIPC hostNetwork hostPID hostUsers stdin stdinOnce tty",
    Form.MAP: (
        "metadata spec jobTemplate template resources limits requests valueFrom secretKeyRef "
        "nodeSelector affinity securityContext"
    ),
    Form.MAPS: (
        "containers initContainers env envFrom volumes tolerations volumeMounts ports claims"
    ),
}
_OF_LIST: Final = {Form.TEXTS: Form.TEXT, Form.MAPS: Form.MAP}
_TYPES: Final = {Form.TEXT: str, Form.FLAG: bool, Form.MAP: dict}
_FORM_OF: Final = {key: form for form, text in _FORMS.items() for key in text.split()}


def check_form(key: str, value: object) -> None:
    """Return if a value has the form that the API reads, or its key's form is not known here.

    Raises:
        InvalidInput: it has another one.
    """
    form = _FORM_OF.get(key)
    if form is None or value is None:
        return
    of_list = _OF_LIST.get(form)
    if of_list is not None and isinstance(value, list):
        form, wrong = of_list, [one for one in value if not _has(of_list, one)]
    else:
        wrong = [] if _has(form, value) else [value]
    if wrong:
        raise InvalidInput(f"{key}: {str(wrong[0])[:40]} is not {form.value}")


def _has(form: Form, value: object) -> bool:
    if form is Form.NUMBER:
        return isinstance(value, int) and not isinstance(value, bool)
    one = _TYPES.get(form)
    return one is not None and isinstance(value, one)
