"""The user's program: its module imported, its handlers found, mistakes told with their place."""

from __future__ import annotations

import importlib
import re
import traceback
from typing import Final

from launcher.errors import LauncherError
from launcher.worker.errors import BadApp
from launcher.worker.registry import REGISTRY, Registry

_APP: Final = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*)(:(?P<registry>[^\W\d]\w*))?")
_EXAMPLE: Final = '@handler("billing.invoice")'


def load(app: str) -> Registry:
    """Import `module` or `module:registry` and return the checked handlers that it registers.

    Raises:
        BadApp: it cannot be imported, or registers no handler.
        BadHandler: one of its functions cannot be a handler.
    """
    match = _APP.fullmatch(app)
    if match is None or app.endswith(".py"):
        raise BadApp(f"{app!r} is no module like app.tasks", "leave out the path and the .py")
    module = _imported(match["module"])
    registry = getattr(module, match["registry"], None) if match["registry"] else REGISTRY
    if not isinstance(registry, Registry):
        raise BadApp(f"{app}: {match['registry']} is no Registry of that module")
    if not len(registry):
        raise BadApp(f"{app} registers no handler", f"put {_EXAMPLE} above a function of it")
    registry.check()
    return registry


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except LauncherError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BadApp(
                f"there is no module {name}: {error}",
                "start the worker where the app can be imported, or install it there",
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> BadApp:
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "importlib" not in one[0]]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    said = "".join(traceback.format_exception_only(error)).strip()
    more = f"`python -c 'import {name}'` shows more"
    return BadApp(f"{place}{name} cannot be imported: {said}", more)
