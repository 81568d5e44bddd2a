from typing import Any

loads: Any

class Journal:
    def onOneSecondTimer(self) -> None: ...
