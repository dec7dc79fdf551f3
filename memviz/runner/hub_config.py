"""A configuration from the Hugging Face hub: one small file, and only where its owner switched that on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from memviz.errors import UsageError

SWITCH = "MEMVIZ_HUB"
HUB = "https://huggingface.co/"
_SECONDS = 20.0
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get(SWITCH, "").strip().lower() in ("1", "true", "yes", "on")


def is_hub_id(name: str) -> bool:
    """`owner/model`, where no such file is here."""
    return bool(_NAME.fullmatch(name)) and not name.endswith((".py", ".json")) and not Path(name).exists()


def fetched(name: str, most_bytes: int, environment: Mapping[str, str] = os.environ) -> bytes:
    """Its config.json. No weights, no code, and nothing of who asks."""
    if not is_on(environment):
        raise UsageError(
            f"There is no {name} here, and nothing is asked of the Hugging Face hub. Give the path of its config.json, "
            f"or set {SWITCH}=1 to have that one file fetched."
        )
    address = f"{HUB}{name}/resolve/main/config.json"
    try:
        with build_opener(_OnTheHub).open(Request(address), timeout=_SECONDS) as answer:
            content: bytes = answer.read(most_bytes + 1)
    except HTTPError as error:
        why = "it wants to know who asks" if error.code in (401, 403) else f"it answers {error.code}"
        raise UsageError(f"{address} cannot be read: {why}. Save the file yourself, and give its path.") from None
    except (URLError, OSError) as error:
        raise UsageError(f"{address} cannot be read: {getattr(error, 'reason', error)}.") from None
    return content


class _OnTheHub(HTTPRedirectHandler):
    """A model that was renamed is followed; to another host nobody is led."""

    def redirect_request(self, *request: Any) -> Any:
        fp, code, newurl = request[1], request[2], str(request[-1])
        if not newurl.startswith(HUB):
            raise HTTPError(newurl, code, "leads to another host", request[-2], fp)
        return super().redirect_request(*request)
