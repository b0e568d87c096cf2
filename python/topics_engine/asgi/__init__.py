"""The HTTP interface as a plain ASGI 3 application.

`app` runs under any ASGI server: `uvicorn topics_engine.asgi:app`. It reads its settings at the
first access, and opens the data directory at the ASGI startup. A process with busy Python threads
beside the server should call `sys.setswitchinterval(0.0001)`, as `topics serve` does: with the
default, a busy thread delays the event loop.
"""

from .application import App
from .build import build, create_app
from .route import Route
from .routes import ROUTES
from .settings import Settings

app: App


def __getattr__(name: str) -> App:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()["app"] = create_app()
    return made


__all__ = ["ROUTES", "App", "Route", "Settings", "app", "build", "create_app"]
