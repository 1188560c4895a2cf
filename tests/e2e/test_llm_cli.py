"""The `llm` command line tool against the REST door, set up as its users do: by a YAML file of models."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

LLM = pathlib.Path(sys.executable).with_name("llm")
QUESTION = "Name three colours."
OPTIONS = ["-o", "temperature", "0", "-o", "max_tokens", "16"]


@pytest.fixture(scope="module")
def llm(daemon, tmp_path_factory):
    """Runs llm with a folder of its own; returns what it printed."""
    folder = tmp_path_factory.mktemp("llm")
    (folder / "extra-openai-models.yaml").write_text(
        f"- model_id: kvasir\n  model_name: smollm2\n  api_base: {daemon.url}/v1\n"
        f"- model_id: kvasir-completion\n  model_name: smollm2\n  api_base: {daemon.url}/v1\n  completion: true\n"
        f"- model_id: kvasir-wrong\n  model_name: gpt-17\n  api_base: {daemon.url}/v1\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LLM_", "OPENAI_"))}
    environment |= {"LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "unused"}

    def run(*arguments, status: int = 0, stdin: str = "") -> str:
        done = subprocess.run([LLM, *arguments], env=environment, input=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


@pytest.fixture(scope="module")
def expected(client) -> str:
    answer = client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": QUESTION}],
                                            temperature=0, max_tokens=16)
    return answer.choices[0].message.content


def test_a_prompt_is_answered_streamed_and_whole(llm, expected):
    assert llm("-m", "kvasir", *OPTIONS, QUESTION).strip() == expected.strip()
    assert llm("-m", "kvasir", *OPTIONS, "--no-stream", QUESTION).strip() == expected.strip()
    logged = json.loads(llm("logs", "list", "--json", "-n", "2"))
    assert [entry["response"] for entry in logged] == [expected] * 2
    assert all(entry["output_tokens"] and entry["input_tokens"] for entry in logged)


def test_a_chat_goes_on_over_two_turns(llm, client, expected):
    printed = llm("chat", "-m", "kvasir", *OPTIONS, stdin=f"{QUESTION}\nAnd one more.\nexit\n")
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": expected},
                {"role": "user", "content": "And one more."}]
    second = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=16)
    assert expected.strip() in printed and second.choices[0].message.content.strip() in printed


def test_a_system_prompt_and_a_file_on_standard_input(llm, client):
    printed = llm("-m", "kvasir", *OPTIONS, "-s", "You count words.", QUESTION, stdin="red green blue")
    sent = json.loads(llm("logs", "list", "--json", "-n", "1"))[0]
    messages = [{"role": "system", "content": sent["system"]}, {"role": "user", "content": sent["prompt"]}]
    answer = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=16)
    assert printed.strip() == answer.choices[0].message.content.strip()


def test_a_completion_model(llm, client):
    printed = llm("-m", "kvasir-completion", *OPTIONS, "Once upon a time")
    answer = client.completions.create(model="smollm2", prompt="Once upon a time", temperature=0, max_tokens=16)
    assert printed.strip() == answer.choices[0].text.strip()


def test_an_error_is_told_in_words(llm):
    assert "gpt-17" in llm("-m", "kvasir-wrong", QUESTION, status=1)
