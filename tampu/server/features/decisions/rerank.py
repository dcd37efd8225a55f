"""Ranking documents by a query, in the forms of Jina, Cohere and Text Embeddings Inference.

llama-server has the first and the last, too. Each function raises RequestError for an invalid
field, which the message names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from tampu.engine.questions import RERANK_INSTRUCTION, Decisions
from tampu.engine.requests import Decided, Rerank
from tampu.errors import RequestError, require
from tampu.server.fields.adapters import AdapterBody, chosen_adapters
from tampu.server.fields.conversation import check_can
from tampu.server.fields.options import MAX_INPUTS, parse_uncut
from tampu.server.fields.tools import shortened
from tampu.server.serving.generation_request import ModelCall
from tampu.server.serving.model_defaults import ModelDefaults


class RerankRequest(AdapterBody, kw_only=True):
    """`POST /v1/rerank`; with `texts` in place of `documents`, in the form of TEI."""

    query: str
    documents: list[str | dict[str, Any]] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    instruction: str | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    # Cohere's and TEI's; documents are not cut.
    rank_fields: list[str] | None = None
    max_chunks_per_doc: int | None = None
    max_tokens_per_doc: int | None = None
    raw_scores: bool | None = None


def parse_rerank(body: RerankRequest, defaults: ModelDefaults) -> ModelCall[Decided]:
    """Return what a request asks."""
    if "rerank" not in defaults.info.capabilities:
        check_can(defaults, "completion", body.model or "", "generate")
    require(body.query.strip(), "query is empty")
    require(not body.raw_scores, "raw_scores is not supported: scores are probabilities")
    require(body.top_n is None or body.top_n >= 1, f"top_n must be 1 or more, not {body.top_n}")
    request = parse_uncut(body, defaults)
    return ModelCall(
        request=Rerank(
            body.query,
            read_documents(body),
            body.instruction or RERANK_INSTRUCTION,
            lora=chosen_adapters(body.lora, body.lora_path) or {},
        ),
        overrides=request.overrides,
        keep_alive_s=request.keep_alive_s,
        control_vectors=request.control_vectors,
        warnings=request.warnings,
    )


def read_documents(body: RerankRequest) -> tuple[str, ...]:
    """Return the documents of a request as texts."""
    require((body.documents is None) != (body.texts is None), "documents: give them, or texts")
    field = "documents" if body.texts is None else "texts"
    given: Sequence[str | dict[str, Any]] = body.documents or body.texts or ()
    require(0 < len(given) <= MAX_INPUTS, f"{field}: there must be 1 to {MAX_INPUTS}")
    ranked = body.rank_fields
    return tuple(_text(each, ranked, f"{field}[{index}]") for index, each in enumerate(given))


def _text(document: str | dict[str, Any], fields: list[str] | None, where: str) -> str:
    """Return the text of a document; of an object `text`, or some fields by their names."""
    if isinstance(document, str):
        text: object = document
    elif fields in (None, ["text"]):
        text = document.get("text")
    else:
        chosen = [(name, document[name]) for name in fields or () if name in document]
        text = "\n".join(f"{name}: {value}" for name, value in chosen) or None
    if not isinstance(text, str):
        what = "a text or have one" if fields is None else f"a text or have {' or '.join(fields)}"
        raise RequestError(f"{where} must be {what}, not {shortened(document)}")
    require(text.strip(), f"{where} is empty")
    return text


def rerank_response(
    body: RerankRequest, found: Decisions, *, is_cohere: bool = False
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the response: the best documents first."""
    scores = [decision.probabilities[0] for decision in found.answers]
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    # Jina's and vLLM's answers have them unless they are refused, Cohere's second form never.
    has_documents = body.return_documents is not False and not is_cohere
    texts = read_documents(body) if has_documents or body.return_text else ()
    if body.texts is not None:
        return [
            {"index": i, "score": scores[i]} | ({"text": texts[i]} if body.return_text else {})
            for i in best
        ]
    results = [
        {"index": i, "relevance_score": scores[i]}
        | ({"document": {"text": texts[i]}} if has_documents else {})
        for i in best
    ]
    if is_cohere:
        meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": found.input_tokens}}
        return {"id": str(uuid4()), "results": results, "meta": meta}
    usage = {"prompt_tokens": found.input_tokens, "total_tokens": found.input_tokens}
    return {
        "id": str(uuid4()), "object": "list", "model": body.model, "results": results,
        "usage": usage,
    }  # fmt: skip
