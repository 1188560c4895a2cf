"""The truth check of the prefix cache (--kv-audit) on a daemon that is used: it finds nothing wrong, changes no answer and
gives way to work."""

import time

import pytest

import crowd
import prompts
from daemon import eventually
from stubs import pb


def chat(daemon, salt: str) -> list:
    """Four turns; (ids, cached tokens) of each."""
    messages, heard = [], []
    for turn in range(4):
        messages.append(pb.ChatMessage(role="user", content=f"Question {turn}: {prompts.text(700 + turn, 25)}?"))
        answer = daemon.stub.Chat(pb.ChatRequest(messages=messages, temperature=0, max_tokens=17, cache_salt=salt))
        heard.append((list(answer.choices[0].token_ids), answer.usage.cached_tokens))
        messages.append(pb.ChatMessage(role="assistant", content=answer.choices[0].text))
    return heard


def test_chats_under_the_truth_check_are_what_they_are_without(daemon, daemon_with):
    expected = chat(daemon, "audit-none")
    assert all(cached > 0 for _, cached in expected[1:])
    audited = daemon_with(kv_audit="1", kv_audit_strict="true")
    for number in range(3):
        assert chat(audited, f"audit-{number}") == expected
    together = crowd.at_once([lambda n=n: chat(audited, f"crowd-{n}") for n in range(4)])
    assert all([ids for ids, _ in heard] == [ids for ids, _ in expected] for heard in together)
    # Each later turn is a hit; the last ones are checked when nothing else is to be done.
    status = eventually(lambda: audited.status().audited_prefixes_total >= 3 and audited.status(), "prefixes were checked")
    assert status.audited_tokens_total > 0 and status.audit_mismatches_total == 0
    assert audited.http.get("/readyz").status_code == 200
    audited.wait_idle()


def test_the_truth_check_gives_way_to_work(start_daemon):
    """A long prefix is checked for many steps. While a request runs nothing of that is computed."""
    daemon = start_daemon(kv_audit="1", step_tokens=64)
    prompt = prompts.token_ids(daemon, 710, 4000)
    request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt))], max_tokens=2, temperature=0)
    for _ in range(2):
        daemon.stub.Complete(request)
    before = eventually(lambda: (s := daemon.status()).audited_tokens_total > 0 and s, "the check has begun")
    assert before.audited_prefixes_total == 0, "and has far to go"
    stream = daemon.stub.CompleteStream(pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=60, ignore_eos=True))
    seen = set()
    for _ in stream:
        status = daemon.status()
        if status.running_sequences == 1:
            seen.add(status.audited_tokens_total)
    assert len(seen) == 1, f"tokens of the check while a request ran: {sorted(seen)}"
    done = eventually(lambda: (s := daemon.status()).audited_prefixes_total == 1 and s, "then it is checked to its end")
    assert done.audit_mismatches_total == 0 and done.audited_tokens_total >= 3999
    daemon.wait_idle()


@pytest.mark.all
def test_a_request_during_a_check_waits_for_one_step_at_most(start_daemon):
    """Medians of the time to the first token: beside an endless check, and without one."""
    def first_token_ms(daemon) -> float:
        times = []
        for number in range(15):
            start = time.monotonic()
            stream = daemon.stub.CompleteStream(pb.CompleteRequest(prompt=[pb.Prompt(text=f"Once {number}")], max_tokens=2))
            next(iter(stream))
            times.append((time.monotonic() - start) * 1000)
            list(stream)
            time.sleep(0.05)  # so that the check goes on in between
        return sorted(times)[len(times) // 2]

    medians = []
    for rate in ("0", "1"):
        daemon = start_daemon(kv_audit=rate)
        prompt = prompts.token_ids(daemon, 711, 7000)
        request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt))], max_tokens=1, temperature=0)
        for _ in range(2):
            daemon.stub.Complete(request)
        medians.append(first_token_ms(daemon))
    print(f"first token: {medians[0]:.1f} ms without a check, {medians[1]:.1f} ms during one")
    # One step of a check computes 32 tokens, which takes less than 100 ms wherever this model is served.
    assert medians[1] <= medians[0] + 100
