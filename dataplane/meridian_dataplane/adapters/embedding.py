"""Embeddings by wordllama: 256 dimensions, weights inside the package, nothing fetched, one thread.

The revision names the weights and the package's version, so that vectors of different code never meet (S-41, Q-55).
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from meridian_dataplane import normaliser

MODEL = "wordllama"
REVISION = "l2-supercat-256-0.4.0.post1"
DIMENSION = 256
IDENT = f"{MODEL}@{REVISION}"

_loading = threading.Lock()
# The tokenizer's padding is shared state: one thread embeds, and the event loop never waits for it.
_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedding")


class Unembeddable(ValueError):
    """A text has no usable vector; the message names why, never the text."""


@lru_cache(maxsize=1)
def _model() -> Any:
    import wordllama  # heavy, and only needed once a question or a document is there

    if wordllama.__version__ != REVISION.rsplit("-", 1)[1]:
        raise RuntimeError(f"wordllama {wordllama.__version__} is installed, but vectors are declared as {IDENT}")
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, dim=DIMENSION, disable_download=True)


def loaded() -> Any:
    """The model, loaded once (about 0.3 s). Call it at start, so that no request pays for it."""
    with _loading:
        return _model()


def count_tokens(texts: Sequence[str]) -> list[int]:
    """Tokens of each text by the embedding's own tokenizer."""
    model = loaded()
    return [sum(encoded.attention_mask) for encoded in model.tokenize(list(texts))] if texts else []


def embed(texts: Sequence[str]) -> list[list[float]]:
    """One unit vector for each text, questions and passages alike. Raises Unembeddable when one has none.

    A vector of norm 0 has the cosine distance NaN to everything: it would be stored and never found (Q-03).
    """
    if not texts:
        return []
    # What has no visible character at all still gets an answer from the vector leg.
    plain = [normaliser.normalise(text) or "?" for text in texts]
    vectors = loaded().embed(plain, norm=False).tolist()
    return [_unit(vector) for vector in vectors]


def _unit(vector: list[float]) -> list[float]:
    if len(vector) != DIMENSION:
        raise Unembeddable(f"the vector has {len(vector)} dimensions instead of {DIMENSION}")
    norm = math.sqrt(math.fsum(x * x for x in vector))
    if not math.isfinite(norm) or norm < 1e-9:
        raise Unembeddable("the vector is not finite or has no length")
    return [x / norm for x in vector]


async def embed_question(question: str) -> list[float]:
    """The vector of one question, made beside the event loop."""
    loop = asyncio.get_running_loop()
    return (await loop.run_in_executor(_thread, embed, [question]))[0]


def literal(vector: Sequence[float]) -> str:
    """pgvector's text form, to be bound as a parameter and cast."""
    return "[" + ",".join(f"{x:.7g}" for x in vector) + "]"
