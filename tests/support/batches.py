"""Files and batches as a client without a package would send them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from support.waiting import PATIENCE_S

ENDED = ("completed", "failed", "expired", "cancelled")


def line(
    custom_id: str, content: str = "Hello", url: str = "/v1/chat/completions", **body: Any
) -> dict[str, Any]:
    """Return a row that asks `m` this."""
    messages = [{"role": "user", "content": content}]
    said = {"messages": messages} if url == "/v1/chat/completions" else {}
    body = {"model": "m", **said, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(lines: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


class Batches:
    """The routes of files and batches of a server, through an `httpx.AsyncClient`."""

    def __init__(self, client: Any, **headers: str) -> None:
        self.client, self.headers = client, headers

    async def upload(self, content: bytes, name: str = "rows.jsonl", **fields: str) -> Any:
        return await self.client.post(
            "/v1/files",
            data={"purpose": "batch"} | fields,
            files={"file": (name, content)},
            headers=self.headers,
        )

    async def create(self, file: str, endpoint: str = "/v1/chat/completions", **more: Any) -> Any:
        body = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"} | more
        return await self.client.post("/v1/batches", json=body, headers=self.headers)

    async def begin(self, lines: Iterable[Any], **more: Any) -> str:
        """Upload rows and begin a batch; return its id."""
        uploaded = await self.upload(jsonl(lines))
        assert uploaded.status_code == 200, uploaded.text
        created = await self.create(uploaded.json()["id"], **more)
        assert created.status_code == 200, created.text
        assert created.json()["status"] == "validating"
        return str(created.json()["id"])

    async def get(self, id: str) -> Any:
        answer = await self.client.get(f"/v1/batches/{id}", headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ended(self, id: str) -> Any:
        """Return a batch when it has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := await self.get(id))["status"] not in ENDED:
                await asyncio.sleep(0)
        return found

    async def lines(self, file: str | None) -> dict[str, Any]:
        """Return the lines of a file by their custom ids; none of no file."""
        if file is None:
            return {}
        answer = await self.client.get(f"/v1/files/{file}/content", headers=self.headers)
        assert answer.status_code == 200
        found = [json.loads(each) for each in answer.content.splitlines()]
        assert len({each["custom_id"] for each in found}) == len(found)
        return {each["custom_id"]: each for each in found}
