"""Answers of both doors in one form, in which they can be compared bit by bit."""

import dataclasses
import struct

from stubs import pb


@dataclasses.dataclass(frozen=True)
class Answer:
    """What DECISIONS call the same bytes: everything here must be equal, whatever happened around the request."""

    token_ids: tuple
    logprobs: tuple  # float32 bits of each counted token's
    text: str
    finish_reason: str
    stop_reason: object = None


def float32_bits(value: float | None) -> int | None:
    return None if value is None else struct.unpack("<I", struct.pack("<f", value))[0]


def logprob_of(entry) -> float | None:
    """Of a TokenLogprob or PromptTokenLogprob: the very first token of a prompt has none."""
    return entry.logprob if entry.HasField("logprob") else None


_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


def _stop_reason(choice):
    which = choice.WhichOneof("stop_reason")
    return getattr(choice, which) if which else None


def of_grpc(response) -> list[Answer]:
    return [Answer(tuple(c.token_ids), tuple(float32_bits(logprob_of(e)) for e in c.logprobs), c.text,
                   _REASONS.get(c.finish_reason), _stop_reason(c)) for c in response.choices]


def of_grpc_stream(chunks) -> list[Answer]:
    """Joins a stream and checks its rules: one finish for each choice, last; usage with the last chunk only."""
    joined = {}
    usages = []
    for chunk in chunks:
        assert not usages, "a chunk after the usage"
        if chunk.HasField("usage"):
            usages.append(chunk.usage)
        for choice in chunk.choices:
            whole = joined.setdefault(choice.index, pb.Choice(index=choice.index))
            assert whole.finish_reason == pb.FINISH_REASON_UNSPECIFIED, "a piece after the finish"
            assert "\ufffd" not in choice.text
            whole.text += choice.text
            whole.token_ids.extend(choice.token_ids)
            whole.logprobs.extend(choice.logprobs)
            whole.finish_reason = choice.finish_reason
            if choice.WhichOneof("stop_reason") == "stop_string":
                whole.stop_string = choice.stop_string
            elif choice.WhichOneof("stop_reason") == "stop_token":
                whole.stop_token = choice.stop_token
    assert len(usages) == 1
    answers = of_grpc(pb.CompleteResponse(choices=[joined[i] for i in sorted(joined)]))
    assert usages[0].completion_tokens == sum(len(a.token_ids) for a in answers)
    return answers


def of_completion(body: dict) -> list[Answer]:
    """A non-streamed answer of /v1/completions with return_token_ids and logprobs."""
    return [Answer(tuple(c["token_ids"]),
                   tuple(float32_bits(v) for v in c["logprobs"]["token_logprobs"]) if c["logprobs"] else (),
                   c["text"], c["finish_reason"], c.get("stop_reason")) for c in body["choices"]]


def of_chat(body: dict) -> list[Answer]:
    return [Answer(tuple(c["token_ids"]),
                   tuple(float32_bits(e["logprob"]) for e in c["logprobs"]["content"]) if c["logprobs"] else (),
                   c["message"]["content"], c["finish_reason"], c.get("stop_reason")) for c in body["choices"]]
