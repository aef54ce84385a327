"""The answer as Markdown: the lines that were found, without further conclusions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ramet.models.research import settings as setting_rules
from ramet.models.research.evidence import MAX_SHOWN, EvidenceLine, find_writers, severity
from ramet.models.research.question import Question

SIGNATURE = (
    "*From ramet's offline researcher, which works by rules: it matched text and followed names and numbers between "
    "files; it did not reason about them. With `--model provider:name` a language model answers.*"
)
_TEST = r"(^|[/_.-])tests?([/_.-]|$)"
_DEFINES = r"^\s*(\w+ )*(def|class|function|func|fn|struct|enum|trait|interface|type|mod|const|let|var) \w*"


def sign(text: str) -> str:
    """Return an answer that ends with a note about its origin."""
    return f"{text.strip()}\n\n{SIGNATURE}"


def by_weight(lines: Iterable[EvidenceLine], question: Question) -> list[EvidenceLine]:
    """Return the lines by relevance: severe and frequent log lines first, then lines with the most terms."""

    def weight(line: EvidenceLine) -> tuple[object, ...]:
        terms, level = question.matching_terms(line.text[:MAX_SHOWN]), severity(line.text)
        often = line.alike * (level - 1) * (1 + len(terms)) * (question.about_fault and line.kind == "logs")
        definition_count = sum(bool(re.search(_DEFINES + re.escape(term), line.text, re.IGNORECASE)) for term in terms)
        return level < 4 or not often, -often, "test" in line.path, -len(terms) - definition_count, line

    return sorted(set(lines), key=weight)


def answer(
    question: Question,
    lines: list[EvidenceLine],
    linked_lines: list[EvidenceLine],
    scope: str,
    omissions: Mapping[str, bool],
) -> str:
    """Return the findings as text. `linked_lines` has the lines of a later search; `omissions` is True for an omission
    by a bound.
    """
    ranked_lines = by_weight(lines, question)
    symptoms = [line for line in ranked_lines if question.about_fault and line.kind == "logs"]
    term_lines = [
        line.cite() for line in ranked_lines if line not in symptoms and question.matching_terms(line.text[:MAX_SHOWN])
    ]
    has_match = any(question.matching_terms(f"{line.path} {line.text}") for line in symptoms)
    settings = list(
        {(s.line[:2], s.key): s for line in (*linked_lines, *lines) for s in setting_rules.settings_on(line)}.values()
    )
    settings = [s for s in settings if s.line.kind == "settings" or not re.search(_TEST, s.line.path)]
    symptom_lines, code, linked_settings = list[str](), list[EvidenceLine](), dict[setting_rules.Setting, None]()
    for line in symptoms[:5]:
        writers, shared = find_writers(line, linked_lines), setting_rules.values_shared(line, settings)[:4]
        similar = (
            f"; {line.alike} lines that were read, up to line {line.last}, differ in numbers, ids and quotes at most"
        )
        symptom_lines.append(line.cite() + similar * (line.alike > 1))
        symptom_lines += [f"  a text in code that makes it: {each.cite()}" for each in writers]
        symptom_lines += [f"  {number}: {setting.cite()}" for number, setting in shared]
        code, linked_settings = code + writers, linked_settings | {setting: None for _, setting in shared}
    groups = setting_rules.compare(settings)
    groups.sort(
        key=lambda group: -max((s in linked_settings) * 9 + len(question.matching_terms(s.name)) for s in group)
    )
    if not question.about_fault:
        groups = [group for group in groups if 2 * len(question.matching_terms(group[0].name)) > len(question.terms)]
    group_texts = [(len({s.measure for s in group}) > 1, " · ".join(s.cite() for s in group[:4])) for group in groups]
    longer = [each for setting in linked_settings for each in setting_rules.longer_times(setting, lines)]
    names = [] if any(omissions.values()) else setting_rules.find_renamed_keys([*lines, *linked_lines], settings)
    sections = {
        "Log lines that report trouble": symptom_lines,
        "Settings of one name with values that contradict each other": [text for differ, text in group_texts if differ],
        "Documents that state longer times than a setting": longer,
        "Settings that may have been renamed": names,
        "Settings of one name with equal values": [text for differ, text in group_texts if not differ][:3],
        "Lines with words of the question": [] if has_match else term_lines,
        "Not looked at": list(omissions),
    }
    titles = [title[0].lower() + title[1:] for title in [*sections][:4] if sections[title]]
    paragraphs = [f"**{' '.join(question.text.split())[:300]}**"]
    if not scope:
        paragraphs += ["There is no text here that could be searched."]
    elif question.about_fault and not titles:
        paragraphs += [
            f"No fault was found in {scope}: no line of a log reports trouble, no settings contradict each other."
        ]
    elif question.about_fault or term_lines:
        paragraphs += [f"Found in {scope}: {', '.join(titles or ['lines with words of the question'])}."]
    else:
        paragraphs += [f"Nothing was found in {scope}: no line holds a word of the question."]
    if symptom_lines and not has_match:
        paragraphs += ["No log line that was read and reports trouble holds a word of the question."]
    for title, entries in sections.items():
        limit = 25 if title in ("Log lines that report trouble", "Not looked at") else 8
        overflow = [f"and {len(entries) - limit} more"] if len(entries) > limit else []
        items = [f"{'  ' * each.startswith('  ')}- {each.strip()}" for each in [*entries[:limit], *overflow]]
        paragraphs += ["\n".join([f"**{title}**", "", *items])] if items else []
    links = {"text of a log line in code": code, "its value in a setting": linked_settings, "a longer time": longer}
    linked_by = [name for name, entries in links.items() if entries]
    level = "fair" if has_match and len(linked_by) > 1 else "low" if titles else "none"
    summary = (
        f"Confidence: {level}. Linked by {', '.join(linked_by) or 'nothing'}. No cause is shown, since nothing was run."
    )
    return sign("\n\n".join([*paragraphs, *([summary] if question.about_fault else [])]))
