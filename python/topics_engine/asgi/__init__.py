"""The HTTP interface as a plain ASGI 3 application.

`app` is ready for any ASGI server: `uvicorn topics_engine.asgi:app`. It opens the directory that the
settings name when the server starts it. A server whose process also computes in Python threads
should call `sys.setswitchinterval(0.0001)`, as `topics serve` does: with the default, a busy thread
takes most turns of the event loop.
"""

from .app import App
from .build import build, create_app
from .routes import ROUTES, Route
from .settings import Settings

app = create_app()

__all__ = ["ROUTES", "App", "Route", "Settings", "app", "build", "create_app"]
