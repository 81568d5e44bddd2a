"""What can go wrong between a worker and its executor, or in what a user registers.

LauncherError
├ BadFrame                    what arrived is no message; whoever sent it is not spoken to any more
│ └ FrameTooBig               it is over the bound, or would be
├ BadHandler                  a function cannot be a handler, or two have one name
├ BadApp                      the module of a worker cannot be imported, or registers nothing
├ BadPayload                  a payload does not fit the type that the handler declares
└ NoExecutor                  nobody listens at the socket, or it refused this worker
"""

from __future__ import annotations

from launcher.errors import LauncherError


class BadFrame(LauncherError):
    """What arrived is no message of this protocol."""

    code = "bad_frame"


class FrameTooBig(BadFrame):
    """A frame is over FRAME_BYTES_MAX."""

    code = "frame_too_big"


class BadHandler(LauncherError):
    """A function cannot be a handler, or two have one name; the message says where it is."""

    code = "bad_handler"


class BadApp(LauncherError):
    """The module of a worker cannot be imported, or registers no handler."""

    code = "bad_app"


class BadPayload(LauncherError):
    """A payload does not fit the type that the handler declares; the message names the field."""

    code = "bad_payload"


class NoExecutor(LauncherError):
    """Nobody listens at the executor's socket, or the executor refused this worker."""

    code = "no_executor"
