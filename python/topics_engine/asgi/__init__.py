"""The HTTP interface as a plain ASGI 3 application.

`app` runs under any ASGI server: `uvicorn topics_engine.asgi:app`. It reads its settings when it is
first called, and opens the data directory at the ASGI startup. A process with busy Python threads
beside the server should call `sys.setswitchinterval(0.0001)`, as `topics serve` does: with the
default, a busy thread delays the event loop.
"""

from .application import App
from .build import DefaultApp, build, create_app
from .route import Route
from .routes import ROUTES
from .settings import Settings

app = DefaultApp()
"""The application of the settings in the environment and in `topics.toml`."""

__all__ = ["ROUTES", "App", "Route", "Settings", "app", "build", "create_app"]
