#!/usr/bin/env python3
"""Lists sentences of more than 25 words in README.md, docs/*.md and the help texts, and counts them by file.

Decision records are left out: they are history. Code blocks and usage lines are left out too. A cell of a table, an
item of a list and a heading each end a sentence. Code between backquotes counts as one word.

    docs/long-sentences.py          every long sentence, then the counts
    docs/long-sentences.py -q       the counts only
"""

import pathlib
import re
import sys

WORDS_MAX = 25
ROOT = pathlib.Path(__file__).resolve().parent.parent


def paragraphs_of_page(text):
    """(line number, text without marks) of each paragraph, item and cell."""
    found, at, lines, in_code = [], 0, [], False

    def close():
        if lines:
            found.append((at, " ".join(lines)))
            lines.clear()

    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("```"):
            in_code = not in_code
            close()
        elif in_code or not bare or bare.startswith("<"):
            close()
        elif bare.startswith("|"):
            close()
            cells = re.sub(r"`[^`]*`", "CODE", bare).strip("|").split("|")
            found += [(number, cell) for cell in cells]
        else:
            if re.match(r"(#+|[*-]|\d+\.) ", bare):
                close()
                bare = re.sub(r"^(#+|[*-]|\d+\.) (\[ \] )?", "", bare)
            if not lines:
                at = number
            lines.append(bare)
            if line.startswith("#"):
                close()
    close()
    return found


def paragraphs_of_help(text):
    """The same of a help text, where an option's words stand in a column of their own."""
    found, at, lines, in_examples = [], 0, [], False

    def close():
        if lines:
            found.append((at, " ".join(lines)))
            lines.clear()

    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare:
            close()
            continue
        if not line.startswith(" "):
            in_examples = bare == "Examples:"
        if in_examples or bare.startswith("Usage:"):
            close()
            continue
        entry = re.match(r" {2,8}\S.*?(?: {2,}(\S.*))?$", line)
        if entry and not line.startswith(" " * 9):
            close()
            bare = entry[1] or ""
        if not lines:
            at = number
        lines.append(bare)
    close()
    return found


def sentences(text):
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "")
    return re.split(r"(?<=[.!?])\)?\s+(?=[A-Z0-9\"(*]|fleet )", text)


def words(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


def main():
    quiet = "-q" in sys.argv[1:]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    helps = sorted((ROOT / "cli/golden/help").glob("*.txt"))
    counts = {}
    for path in pages + helps:
        split = paragraphs_of_page if path.suffix == ".md" else paragraphs_of_help
        for number, text in split(path.read_text()):
            for sentence in sentences(text):
                if len(words(sentence)) > WORDS_MAX:
                    name = str(path.relative_to(ROOT))
                    counts[name] = counts.get(name, 0) + 1
                    if not quiet:
                        print(f"{name}:{number}: {len(words(sentence))} words: {sentence}")
    for name, count in sorted(counts.items()):
        print(f"{count:4}  {name}")
    print(f"{sum(counts.values()):4}  in all")


main()
