"""Files and batches over fake models: statuses, errors, what is kept, and who comes first."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batches import Batches, jsonl, line
from support.fake_runner import FakeStart
from support.waiting import until

from tampu.engine.load_options import LoadOptions
from tampu.server.features.batches import input as batch_input
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

CHAT = "/v1/chat/completions"


@pytest.fixture
def site(model_folder: Path, tmp_path: Path) -> Site:
    return make_site(model_folder, tmp_path / "state")


def make_site(models: Path, state: Path | None, **options: Any) -> Site:
    base = ServerOptions(model=LoadOptions(context=1024), state=state)
    return Site(models, FakeStart(), replace(base, **options))


@asynccontextmanager
async def started(site: Site) -> AsyncIterator[Batches]:
    async with site.started() as client:
        yield Batches(client)


def run(site: Site, test: Callable[[Batches], Any]) -> Any:
    return site.run(lambda client: test(Batches(client)))


def content(line: Any) -> str:
    return str(line["response"]["body"]["choices"][0]["message"]["content"])


async def test_every_row_is_answered_as_its_route_answers(site: Site) -> None:
    rows = {
        CHAT: line("a", "Hello there"),
        "/v1/completions": line("b", url="/v1/completions", prompt="Say this"),
        "/v1/embeddings": line("c", url="/v1/embeddings", input=["x", "y"]),
        "/v1/responses": line("d", url="/v1/responses", input="Hi"),
        "/v1/decisions": line(
            "e",
            url="/v1/decisions",
            input="x",
            questions=[{"type": "predicate", "name": "q", "instructions": "?"}],
        ),
    }

    async with started(site) as batches:
        for endpoint, row in rows.items():
            direct = (await batches.client.post(endpoint, json=row["body"])).json()
            batch = await batches.ended(await batches.begin([row], endpoint=endpoint))
            assert batch["status"] == "completed", batch
            assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
            assert batch["error_file_id"] is None
            [found] = (await batches.lines(batch["output_file_id"])).values()
            assert found["custom_id"] == row["custom_id"]
            assert found["error"] is None
            assert found["response"]["status_code"] == 200
            assert found["response"]["body"].keys() == direct.keys()
            assert found["response"]["body"].get("usage") == direct.get("usage")


async def test_results_are_in_the_order_of_the_input_and_times_are_told(site: Site) -> None:
    async with started(site) as batches:
        names = [f"row {number}" for number in range(300)]
        id = await batches.begin([line(name, name) for name in names], metadata={"for": "x"})
        batch = await batches.ended(id)
        found = await batches.lines(batch["output_file_id"])
        assert [*found] == names
        assert [content(each) for each in found.values()] == names
        assert batch["metadata"] == {"for": "x"}
        assert batch["usage"]["input_tokens"] == 3 * len(names)
        assert batch["usage"]["total_tokens"] == 5 * len(names)
        times = [batch[f"{name}_at"] for name in ("created", "in_progress", "finalizing")]
        assert times == sorted(times)
        assert batch["completed_at"] >= times[-1]
        assert batch["expires_at"] == batch["created_at"] + 86_400


async def test_failed_rows_are_in_the_error_file_with_their_response(site: Site) -> None:
    rows = [
        line("fine"),
        line("refused", "refuse"),
        line("no model", model="nothing"),
        line("bad field", max_tokens="x"),
        line("twice", max_tokens=1, max_completion_tokens=2),
    ]

    async with started(site) as batches:
        batch = await batches.ended(await batches.begin(rows))
        assert batch["status"] == "completed"
        assert batch["request_counts"]["failed"] == len(rows) - len(
            await batches.lines(batch["output_file_id"])
        )
        found = await batches.lines(batch["error_file_id"])
        statuses = {name: each["response"]["status_code"] for name, each in found.items()}
        assert statuses["refused"] == 500
        assert statuses["no model"] == 404
        assert statuses["bad field"] == 400
        assert "max_tokens" in found["bad field"]["response"]["body"]["error"]["message"]


@pytest.mark.parametrize(
    ("text", "code", "number", "told"),
    [
        (b"{", "invalid_json_line", 1, "JSON"),
        (b"\xff", "invalid_json_line", 1, "JSON"),
        (b"[]", "invalid_request", 1, "object"),
        (b"[" * 100_000, "invalid_request", 1, "object"),
        (jsonl([line("a")]) + b"nothing", "invalid_json_line", 2, "JSON"),
        (jsonl([{"custom_id": "a"}]), "invalid_request", 1, "method"),
        (jsonl([line("a") | {"body": []}]), "invalid_request", 1, "object"),
        (jsonl([line("")]), "invalid_custom_id", 1, "custom_id"),
        (jsonl([line("a" * 1000)]), "invalid_custom_id", 1, "custom_id"),
        (jsonl([line("a"), line("b"), line("a")]), "duplicate_custom_id", 3, "line 1"),
        (jsonl([line("a", url="/v1/embeddings")]), "invalid_url", 1, "/v1/embeddings"),
        (jsonl([line("a", url="/api/delete")]), "invalid_url", 1, "/api/delete"),
        (jsonl([line("a") | {"method": "DELETE"}]), "invalid_method", 1, "POST"),
        (jsonl([line("a", stream=True)]), "invalid_request", 1, "stream"),
        (b"", "empty_file", None, "no requests"),
        (b"\n\n", "empty_file", None, "no requests"),
    ],
)
async def test_a_wrong_line_fails_the_batch_and_is_named(
    site: Site, text: bytes, code: str, number: int | None, told: str
) -> None:
    async with started(site) as batches:
        file = (await batches.upload(text)).json()["id"]
        batch = await batches.ended((await batches.create(file)).json()["id"])
        assert batch["status"] == "failed"
        assert batch["failed_at"] >= batch["created_at"]
        [error] = batch["errors"]["data"]
        assert (error["code"], error["line"]) == (code, number)
        assert told in error["message"]
        assert batch["request_counts"]["total"] == 0
        assert batch["output_file_id"] is batch["error_file_id"] is None
        assert site.start.runners == []  # nothing was done
        listed = (await batches.client.get("/v1/files")).json()["data"]
        assert [each["id"] for each in listed] == [file]


async def test_rows_and_files_over_the_limits_are_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_input, "MAX_ROW", 500)
    monkeypatch.setattr(batch_input, "MAX_ROWS", 3)

    async def errors(batches: Batches, lines: list[Any]) -> Any:
        batch = await batches.ended(await batches.begin(lines))
        assert batch["status"] == "failed"
        return [error["code"] for error in batch["errors"]["data"]]

    async with started(site) as batches:
        assert await errors(batches, [line("a", "x" * 1000)]) == ["row_size"]
        assert await errors(batches, [line(str(n)) for n in range(4)]) == ["too_many_rows"]
        many = [line("same") for _ in range(500)]
        monkeypatch.setattr(batch_input, "MAX_ROWS", 1000)
        assert len(await errors(batches, many)) == batch_input.MAX_ERRORS


async def test_what_is_asked_of_a_batch_is_checked(site: Site) -> None:
    async with started(site) as batches:
        file = (await batches.upload(jsonl([line("a")]))).json()["id"]
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"endpoint": "/v1/images/generations"}, "endpoint"),
            ({"endpoint": "/api/delete"}, "endpoint"),
            ({"completion_window": "soon"}, "completion_window"),
            ({"completion_window": "0s"}, "completion_window"),
            ({"completion_window": "10000h"}, "completion_window"),
            ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
            ({"output_expires_after": {"anchor": "x", "seconds": 3600}}, "output_expires_after"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "seconds"),
        ]
        for more, told in wrong:
            answer = await batches.create(file, **more)
            assert answer.status_code == 400, more
            assert told in answer.json()["error"]["message"]
            assert answer.json()["error"]["param"].startswith(next(iter(more)))
        assert (await batches.create("file-nothing")).status_code == 404
        assert (await batches.client.get("/v1/batches")).json()["data"] == []
        for path in ("/v1/batches/x", "/v1/files/x", "/v1/files/x/content"):
            assert (await batches.client.get(path)).status_code == 404
        assert (await batches.client.delete("/v1/files/..%2fstate.sqlite3")).status_code == 404
        assert (await batches.client.post("/v1/batches/x/cancel")).status_code == 404


async def test_a_cancelled_batch_keeps_what_is_done(site: Site) -> None:
    rows = [line(f"done {n}") for n in range(5)] + [line(f"left {n}", "wait") for n in range(9)]

    async with started(site) as batches:
        id = await batches.begin(rows)
        while (await batches.get(id))["request_counts"]["completed"] < 5:
            await asyncio.sleep(0)
        answer = await batches.client.post(f"/v1/batches/{id}/cancel")
        assert answer.json()["status"] == "cancelling"
        batch = await batches.ended(id)
        assert batch["status"] == "cancelled"
        assert batch["cancelled_at"] >= batch["cancelling_at"]
        assert batch["request_counts"] == {"total": 14, "completed": 5, "failed": 9}
        assert [*await batches.lines(batch["output_file_id"])] == [f"done {n}" for n in range(5)]
        left = await batches.lines(batch["error_file_id"])
        assert [*left] == [f"left {n}" for n in range(9)]
        assert {each["error"]["code"] for each in left.values()} == {"batch_cancelled"}
        assert {each["response"] for each in left.values()} == {None}
        [(_, runner)] = site.start.runners
        assert runner.running == 0
        again = await batches.client.post(f"/v1/batches/{id}/cancel")
        assert again.json()["status"] == "cancelled"
        other = await batches.ended(await batches.begin([line("a")]))
        refused = await batches.client.post(f"/v1/batches/{other['id']}/cancel")
        assert refused.status_code == 400
        assert "completed" in refused.json()["error"]["message"]


async def test_a_batch_expires_with_its_window(site: Site) -> None:
    async with started(site) as batches:
        rows = [line("done"), line("left", "wait"), line("too late", "wait")]
        for seconds in (1, 4, 16):  # a busy machine may not do a row in a second
            batch = await batches.ended(await batches.begin(rows, completion_window=f"{seconds}s"))
            assert batch["status"] == "expired"
            assert batch["expired_at"] >= batch["expires_at"]
            if batch["request_counts"]["completed"]:
                break
        assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
        assert [*await batches.lines(batch["output_file_id"])] == ["done"]
        left = await batches.lines(batch["error_file_id"])
        assert {each["error"]["code"] for each in left.values()} == {"batch_expired"}


def test_the_next_server_goes_on_where_the_last_one_stopped(
    model_folder: Path, tmp_path: Path
) -> None:
    first = make_site(model_folder, tmp_path)
    rows = [line(f"row {n}", f"row {n}" if n < 7 else "wait") for n in range(12)]

    async def begin(batches: Batches) -> str:
        id = await batches.begin(rows)
        while (await batches.get(id))["request_counts"]["completed"] < 7:
            await asyncio.sleep(0)
        return id

    async def end(batches: Batches) -> Any:
        await until(
            lambda: second.start.runners and second.start.runners[0][1].requests, "rows are asked"
        )
        assert [*(await batches.get(id)).items()][:1]
        await batches.client.post(f"/v1/batches/{id}/cancel")
        batch = await batches.ended(id)
        return batch, await batches.lines(batch["output_file_id"])

    id = run(first, begin)
    second = make_site(model_folder, tmp_path)
    batch, found = run(second, end)
    assert batch["request_counts"] == {"total": 12, "completed": 7, "failed": 5}
    assert [*found] == [f"row {n}" for n in range(7)]
    asked = [p.messages[-1]["content"] for p, _ in second.start.runners[0][1].requests]
    assert set(asked) == {"wait"}  # what was done is not done again


async def test_a_batch_whose_file_is_gone_from_the_disk_fails(site: Site) -> None:
    async with started(site) as batches:
        file = (await batches.upload(jsonl([line("a")]))).json()["id"]
        [place] = site_files(site)
        place.unlink()
        batch = await batches.ended((await batches.create(file)).json()["id"])
        assert batch["status"] == "failed"
        [error] = batch["errors"]["data"]
        assert (error["code"], error["param"]) == ("input_file_unreadable", "input_file_id")
        assert f"{file} is gone from the disk" in error["message"]
        content = await batches.client.get(f"/v1/files/{file}/content")
        assert content.status_code == 404
        assert f"{file} is gone from the disk" in content.json()["error"]["message"]
        assert (await batches.client.head(f"/v1/files/{file}/content")).status_code == 404
        assert (await batches.client.delete(f"/v1/files/{file}")).status_code == 200


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"{}")])
def test_a_batch_whose_file_goes_between_two_servers_keeps_what_is_done(
    model_folder: Path, tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    first = make_site(model_folder, tmp_path)
    rows = [line("done"), *(line(f"left {n}", "wait") for n in range(40))]

    async def begin(batches: Batches) -> str:
        id = await batches.begin(rows)
        while not (await batches.get(id))["request_counts"]["completed"]:
            await asyncio.sleep(0)
        return id

    async def end(batches: Batches) -> None:
        batch = await batches.ended(begun)
        assert batch["status"] == "failed"
        assert batch["failed_at"] >= batch["finalizing_at"]
        [error] = batch["errors"]["data"]
        assert batch["input_file_id"] in error["message"]
        assert batch["request_counts"] == {"total": 41, "completed": 1, "failed": 40}
        assert [*await batches.lines(batch["output_file_id"])] == ["done"]
        left = await batches.lines(batch["error_file_id"])
        assert {each["error"]["code"] for each in left.values()} == {"batch_failed"}

    begun = run(first, begin)
    [place] = site_files(first)
    change(place)
    run(make_site(model_folder, tmp_path), end)


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
async def test_a_batch_whose_file_is_gone_is_cancelled_and_expires(site: Site, ending: str) -> None:
    window = "2s" if ending == "expired" else "24h"

    async with started(site) as batches:
        id = await batches.begin([line("a", "wait")], completion_window=window)
        await until(lambda: site.start.runners and site.start.runners[0][1].requests, "it runs")
        [place] = site_files(site)
        place.unlink()
        if ending == "cancelled":
            await batches.client.post(f"/v1/batches/{id}/cancel")
        batch = await batches.ended(id)
        assert (batch["status"], batch["errors"]) == (ending, None)
        assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}


async def test_files_are_listed_read_and_deleted(site: Site) -> None:
    async with started(site) as batches:
        ids = []
        for number in range(3):
            made = await batches.upload(b"x" * number, f"../a/{number}.jsonl\x1b")
            ids.append(made.json()["id"])
            assert made.json() | {"created_at": 0} == {
                "id": ids[-1], "object": "file", "bytes": number, "created_at": 0,
                "filename": f"{number}.jsonl?", "purpose": "batch", "status": "processed",
            }  # fmt: skip
        get = batches.client.get
        page = (await get("/v1/files?limit=2")).json()
        assert [each["id"] for each in page["data"]] == ids[:0:-1]
        assert (page["has_more"], page["last_id"]) == (True, ids[1])
        rest = (await get(f"/v1/files?limit=2&after={ids[1]}")).json()
        assert ([each["id"] for each in rest["data"]], rest["has_more"]) == (ids[:1], False)
        ordered = (await get("/v1/files?order=asc&purpose=batch")).json()
        assert [each["id"] for each in ordered["data"]] == ids
        assert (await get("/v1/files?purpose=batch_output")).json()["data"] == []
        assert (await get(f"/v1/files/{ids[2]}/content")).content == b"xx"
        for query in ("limit=0", "limit=x", "limit=99999999999999999999", "order=up"):
            assert (await get(f"/v1/files?{query}")).status_code == 400
        assert (await get("/v1/files?after=nothing")).status_code == 404
        gone = await batches.client.delete(f"/v1/files/{ids[0]}")
        assert gone.json() == {"id": ids[0], "object": "file", "deleted": True}
        assert (await get(f"/v1/files/{ids[0]}")).status_code == 404
        assert len([*(site_files(site))]) == 2


def site_files(site: Site) -> list[Path]:
    [database] = site.folder_of_state.glob("*.sqlite3")
    return [*(database.parent / "files").iterdir()]


async def test_a_file_that_a_batch_reads_is_not_deleted(site: Site) -> None:
    async with started(site) as batches:
        file = (await batches.upload(jsonl([line("a", "wait")]))).json()["id"]
        id = (await batches.create(file)).json()["id"]
        refused = await batches.client.delete(f"/v1/files/{file}")
        assert refused.status_code == 400
        assert id in refused.json()["error"]["message"]
        await batches.client.post(f"/v1/batches/{id}/cancel")
        await batches.ended(id)
        assert (await batches.client.delete(f"/v1/files/{file}")).status_code == 200


async def test_everything_is_private_to_the_user(site: Site) -> None:
    async with started(site) as batches:
        await batches.ended(await batches.begin([line("a")]))
        for path in site.folder_of_state.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    ("headers", "body", "told"),
    [
        ({"content-type": "application/json"}, b"{}", "form"),
        ({}, b"{}", "form"),
        ({"content-type": "multipart/form-data"}, b"x", "boundary"),
        ({"content-type": f"multipart/form-data; boundary={'x' * 99}"}, b"x", "boundary"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"", "incomplete"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x--", "file is required"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n\r\n\r\n--x--", "name"),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc',
            "incomplete",
        ),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\r\n' * 2
            + b"--x--",
            "more than one file",
        ),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"v" * 9000 + b"\r\n--x--",
            "longer than",
        ),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 40 + b"--x--",
            "parts",
        ),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x" + b"h" * 9000, "not valid"),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b"--x\r\n" + b"h" * 9000,
            "Maximum header size",
        ),
    ],
)
async def test_a_hostile_upload_is_refused_and_leaves_nothing(
    site: Site, headers: dict[str, str], body: bytes, told: str
) -> None:
    async with started(site) as batches:
        answer = await batches.client.post("/v1/files", content=body, headers=headers)
        assert answer.status_code == 400
        assert told in answer.json()["error"]["message"]
        assert site_files(site) == []


async def test_uploads_are_bounded_in_size_and_number(model_folder: Path, tmp_path: Path) -> None:
    site = make_site(model_folder, tmp_path, max_file_bytes=100, max_files_bytes=150, max_files=3)

    async with started(site) as batches:
        refused = await batches.upload(b"x" * 101)
        assert refused.status_code == 413
        assert "MAX_FILE_SIZE" in refused.json()["error"]["message"]
        for purpose in ("assistants", "", "batch_output"):
            assert (await batches.upload(b"x", purpose=purpose)).status_code == 400
        assert site_files(site) == []
        assert (await batches.upload(b"x" * 100)).status_code == 200
        assert (await batches.upload(b"x" * 100)).status_code == 200
        assert "MAX_FILES_SIZE" in (await batches.upload(b"x")).json()["error"]["message"]
        for each in (await batches.client.get("/v1/files")).json()["data"]:
            await batches.client.delete(f"/v1/files/{each['id']}")
        for _ in range(3):
            assert (await batches.upload(b"x")).status_code == 200
        assert "MAX_FILES" in (await batches.upload(b"x")).json()["error"]["message"]


def test_a_second_server_does_not_run_the_batches_of_the_first(
    model_folder: Path, tmp_path: Path
) -> None:
    first, second = (make_site(model_folder, tmp_path) for _ in range(2))

    async def test(client: Any) -> None:
        id = await Batches(client).begin([line("a", "wait")])
        async with second.app.router.lifespan_context(second.app):
            import httpx

            async with httpx.AsyncClient(
                transport=second.transport, base_url="http://127.0.0.1:11434"
            ) as other:
                refused = await other.get(f"/v1/batches/{id}")
                assert refused.status_code == 503
                assert "TAMPU_STATE" in refused.json()["error"]["message"]
        assert second.start.runners == []

    first.run(test)


def test_what_a_killed_server_was_writing_is_removed(model_folder: Path, tmp_path: Path) -> None:
    run(make_site(model_folder, tmp_path), lambda batches: batches.upload(b"kept"))
    (tmp_path / "files" / "file-orphan").write_bytes(b"half")
    (tmp_path / "files" / ".file-x.partial").write_bytes(b"half")
    run(make_site(model_folder, tmp_path), lambda batches: batches.client.get("/v1/files"))
    assert [path.read_bytes() for path in (tmp_path / "files").iterdir()] == [b"kept"]


async def test_a_damaged_database_is_named_and_kept(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state.sqlite3").write_bytes(b"nothing of SQLite's" * 100)
    site = make_site(model_folder, tmp_path)

    async with started(site) as batches:
        answer = await batches.client.get("/v1/batches")
        assert answer.status_code == 500
        assert "state.sqlite3" in answer.json()["error"]["message"]
        answer = await batches.client.post(CHAT, json=line("a")["body"])
        assert answer.status_code == 200
    assert (tmp_path / "state.sqlite3").read_bytes().startswith(b"nothing")


async def test_rows_have_the_priority_batch_and_do_not_fill_the_queue(
    model_folder: Path, tmp_path: Path
) -> None:
    site = make_site(model_folder, tmp_path, max_queue=1)

    async with started(site) as batches:
        id = await batches.begin([line(f"{n}", "wait") for n in range(20)])
        await until(lambda: site.start.runners and site.start.runners[0][1].running > 1, "rows")
        answer = await batches.client.post(CHAT, json=line("live")["body"])
        assert answer.status_code == 200
        [(_, runner)] = site.start.runners
        given = {p.messages[-1]["content"]: o.priority for p, o in runner.requests}
        assert given == {"wait": "batch", "Hello": "interactive"}
        await batches.client.post(f"/v1/batches/{id}/cancel")
        await batches.ended(id)


async def test_without_a_folder_nothing_is_kept(model_folder: Path) -> None:
    site = make_site(model_folder, None)

    async with started(site) as batches:
        batch = await batches.ended(await batches.begin([line("a")]))
        assert batch["status"] == "completed"
        assert json.dumps(await batches.lines(batch["output_file_id"]))
