"""`topics console`: opens the web console of a server in a browser."""

from __future__ import annotations

import webbrowser

from ..errors import NotFound
from ..lockfile import holder_of
from .output import Output, print_error


def console(url: str | None, data_dir: str, out: Output, *, opens: bool) -> None:
    """Prints the address of the console, and opens it in a browser.

    Args:
        url: the server; without it, the one of this machine that serves the directory.
        opens: open a browser, too.

    Raises:
        NotFound: no server serves the directory.
    """
    if not url:
        holder = holder_of(data_dir)
        if holder is None or holder.url is None:
            message = (
                f"no server serves {data_dir}: start `topics serve --data-dir {data_dir}`, or give "
                "--url"
            )
            raise NotFound(message)
        url = holder.url
    address = (url if "//" in url else f"http://{url}").rstrip("/") + "/console"
    out.fields({"console": address})
    if opens and not webbrowser.open(address):
        print_error("there is no browser here: open the address yourself")
