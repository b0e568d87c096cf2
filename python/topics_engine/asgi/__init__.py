"""The HTTP interface as a plain ASGI 3 application.

`app` is ready for any ASGI server: `uvicorn topics_engine.asgi:app`. Its settings are read when it
is first asked for, and the directory that they name is opened when the server starts it. A server
whose process also computes in Python threads should call `sys.setswitchinterval(0.0001)`, as
`topics serve` does: with the default, a busy thread takes most turns of the event loop.
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
