from typing import Any

loads: Any
load: Any
