"""Is there a way to the Hugging Face hub? Asked before its libraries, which would try for minutes."""

from __future__ import annotations

import os
import socket
import urllib.parse
import urllib.request

from .files import UserError

PATIENCE = 3.0  # seconds for the hub to answer at all


def need_hub(what: str, remedy: str) -> None:
    """Raises: UserError, at once or in seconds, if the hub cannot be reached. what: that is wanted from it."""
    for switch in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(switch, "").upper() in ("1", "ON", "YES", "TRUE"):
            raise UserError(f"{switch} is set, so {what} is out of reach: unset it, or {remedy}.")
    from huggingface_hub.constants import ENDPOINT

    hub = urllib.parse.urlsplit(ENDPOINT)
    proxy = urllib.request.getproxies().get(hub.scheme)
    if proxy and not urllib.request.proxy_bypass(hub.hostname or ""):
        hub = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    try:
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname or "", port), timeout=PATIENCE).close()
    except (OSError, ValueError):
        raise UserError(f"the hub does not answer, so {what} is out of reach: {remedy}.") from None
