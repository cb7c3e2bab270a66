"""An answer as Markdown: what is read is what the console says, and names are no markup."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.runs import Recording
from markdown_it import MarkdownIt

from mindrlhf_msprobe.report.answer import Code, Rows, as_text
from mindrlhf_msprobe.report.markdown import as_markdown, is_markdown

HOSTILE = (
    *("<img src=x onerror=alert(1)>", "a|b", "`code` ``more`` ```", "![x](http://x)", "**bold**"),
    *("1. one", "- item", "# head", "> quote", "_a_ b_c", "x\n\n# y", "\x1b[2J", "\u202e", "&lt;"),
    *("===", "~~gone~~", "\\", "$x$", "[x]: y", "12) two", "    code", "@somebody", "-->"),
)


def rendered(text):
    """Return the HTML that Markdown becomes, with the tables of GitHub, and its text alone."""
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    bare = re.sub(r"<!--.*?-->|</?[a-z0-9 =\"-]+/?>", "", html)
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        bare = bare.replace(entity, char)
    return html, bare


def shown(text):
    return as_text([text]).strip()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_shown_as_it_is_and_is_no_markup(name):
    """In the headline, in a list, in a table and in code."""
    answer = [f"x {name}", [name, [f"{name} y"]], Rows(("name", name), [(name, "2")]), Code(name)]
    html, bare = rendered(as_markdown(answer))
    tags = {*re.findall(r"<([a-z0-9]+)", html)}
    assert tags <= {"p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"} | {
        *("pre", "code")
    }
    texts = [" ".join(line.split()) for line in bare.splitlines() if line.strip()]
    of_name = " ".join(shown(name).split())
    for said in (f"x {of_name}", of_name, f"{of_name} y"):
        assert said.strip() in texts
    assert html.count("<code>") == 1
    assert html.count("<li>") == 2
    assert html.count("<tr>") == 2


def test_nobody_is_called():
    """GitHub sends a mail to whom a text names behind an @."""
    assert re.search(r"@\w", as_markdown(["x", ["@somebody and a@b"]])) is None


def test_the_headline_comes_first_with_what_stands_under_it():
    """An issue begins with the answer, in bold."""
    lines = ["the answer", ["why"], "after"]
    _, bare = rendered(as_markdown(lines))
    assert bare.split() == ["the", "answer", "why", "after"]
    assert as_markdown(lines).startswith("**the answer**\n")


def test_a_command_to_copy_stands_in_a_block_of_its_own():
    """Without the words before it, which a console shows on the same line."""
    lines = ["x", [Code("rm a", words="to remove: "), Code("mv a b", words="to move: ")]]
    assert as_text(lines) == "x\n  to remove: rm a\n  to move: mv a b"
    html, bare = rendered(as_markdown(lines))
    assert re.findall("<pre><code>(.*?)</code></pre>", html, re.DOTALL) == ["rm a\n", "mv a b\n"]
    assert "to remove:" in [line.strip() for line in bare.splitlines()]


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_command_that_fails_leaves_no_earlier_answer(tmp_path, cli, as_json):
    """What stands in the file is what was wrong, not what another command found."""
    recording = Recording(tmp_path / "a")
    with recording.phase("actor_update"):
        recording.call("x", "Net", lambda x: x, np.ones(2))
    recording.end_step()
    recording.close()
    file = tmp_path / "answer.md"
    cli("show", tmp_path / "a", *as_json, "--markdown", file, code=0)
    assert "actor_update" in file.read_text("utf-8")
    wrong = cli("show", tmp_path / "gone", *as_json, "--markdown", file, code=2).err
    _, bare = rendered(file.read_text("utf-8"))
    assert " ".join(bare.split()) == " ".join(wrong.split())
    assert is_markdown(file)
    cli("show", tmp_path / "a", "--markdown", file, code=0)


def test_the_answer_of_a_comparison_is_a_document(tmp_path, cli):
    """The same lines as on the console; the next step stands in a block that can be copied."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update"):
            recording.call("x|`<b>", "Net", lambda x, n=name: x + (n == "b"), np.ones(2))
        recording.end_step()
        recording.close()
    file = tmp_path / "answer.md"
    runs = (tmp_path / "a", tmp_path / "b")
    console = cli("compare", *runs, "-o", tmp_path / "out", "--markdown", file, code=1).out
    html, bare = rendered(file.read_text("utf-8"))
    assert is_markdown(file)
    assert html.startswith("<p><strong>DIVERGED at step 0, actor_update, rank 0</strong></p>")
    assert re.search(r"<pre><code>\s*msprobe_config: {msprobe: true", html)
    said = [" ".join(line.split()) for line in console.splitlines()]
    found = {" ".join(line.split()) for line in bare.splitlines()}
    assert {line for line in said if " in 0." not in line} <= found
    cli("compare", *runs, "-o", tmp_path / "out", "--json", "--markdown", file, code=1)
    own = "# my issue\n\n" + file.read_text("utf-8")  # begun by somebody, ends as an answer does
    file.write_text(own, encoding="utf-8")
    cli("compare", *runs, "-o", tmp_path / "out", "--markdown", file, code=2)
    assert file.read_text("utf-8") == own
