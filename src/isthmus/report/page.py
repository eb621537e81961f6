"""The pieces that the report's page is made of: its frame, its tables, its style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest

from isthmus.report import svg, wording
from isthmus.report.loading import Findings


def document(title: str, headline: str, sections: Sequence[tuple[str, str, str]], sources: Sequence[str]) -> str:
    """The whole page.

    Arguments:
        title: as text; the headline and the bodies are HTML.
        sections: each with its anchor, its heading and its body.
        sources: lines for the foot of the page.
    """
    links = " ".join(f'<a href="#{key}">{name}</a>' for key, name, _ in sections)
    bodies = "".join(f'<section id="{key}"><h2>{name}</h2>{body}</section>' for key, name, body in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)} · Isthmus</title><style>{_STYLE}{svg.STYLE}</style></head><body>"
        f"<header><p class=kicker>Federated graph study</p><h1>{escape(title)}</h1>{headline}"
        f"<nav aria-label=Sections>{links}</nav></header><main>{bodies}</main>"
        f"<footer>{'<br>'.join(map(escape, sources))}</footer></body></html>\n"
    )


def head(text: str, kind: str = "") -> str:
    """The head of a column; the kind `n` is for numbers, `name` for names from the data, which may break anywhere."""
    return f'<th scope=col class="{kind}">{escape(text)}</th>'


def heads(names: Iterable[str], kind: str = "") -> str:
    """The heads of columns of one kind."""
    return "".join(head(name, kind) for name in names)


def row_head(name: str) -> str:
    """The head of a row."""
    return f"<th scope=row>{escape(name)}</th>"


def row(head: str, values: Iterable[object], rest: str = "", of: Iterable[str] = ()) -> str:
    """A row: its head, cells with numbers (as HTML), and the rest of its cells.

    Arguments:
        of: what each number is of, which a phone shows beside it where the head of the table is hidden.
    """
    names = (f' data-of="{escape(name)}"' for name in of)
    cells = "".join(f"<td class=n{name}>{value}</td>" for value, name in zip_longest(values, names, fillvalue=""))
    return f"<tr>{head}{cells}{rest}</tr>"


def table(head: str, body: str, note: str, kind: str = "") -> str:
    """A table from rows of HTML with a note under it; a body may have `tbody` elements of its own."""
    rows = body if body.startswith("<tbody>") else f"<tbody>{body}</tbody>"
    caption = f"<caption><span>{escape(note)}</span></caption>"
    return f'<div class=scroll><table class="{kind}">{caption}<thead>{head}</thead>{rows}</table></div>'


def folded(summary: str, body: str) -> str:
    """HTML that a click on its summary opens; on paper it is open."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def heading(text: str, tag: str) -> str:
    """A heading, or nothing without a text."""
    return f"<{tag}>{escape(text)}</{tag}>" if text else ""


def method_head(findings: Findings, method: str) -> str:
    """The head of a method's row, in its colour."""
    remark = findings.remark(method)
    note = f" <small>{remark}</small>" if remark else ""
    return f'<th scope=row class="s{svg.slot(findings.style(method))}"><i></i>{escape(method)}{note}</th>'


def bytes_html(count: float) -> str:
    """Bytes for people, with the exact number to hover over."""
    return f'<data value="{count:.0f}" title="{count:,.0f} bytes">{wording.format_bytes(count)}</data>'


_STYLE = """
:root{--paper:#fff;--ink:#16191d;--soft:#5a636d;--line:#dde1e6;--tint:#f5f7f9;--blue:#0067a5;--warm:#a84300;--cool:#00705a}
@media screen and (prefers-color-scheme:dark){
:root{--paper:#14171a;--ink:#eceff2;--soft:#a3adb8;--line:#333a42;--tint:#1c2126;--blue:#5cb3f0;--warm:#ff9f66;--cool:#3fcfa4}}
*{box-sizing:border-box}html{scroll-behavior:smooth}
body{margin:0 auto;max-width:1120px;padding:40px 24px;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
.kicker{margin:0;color:var(--soft);font-size:13px;letter-spacing:.08em;text-transform:uppercase}
h1{margin:4px 0 20px;font-size:36px;line-height:1.15;letter-spacing:-.02em;overflow-wrap:anywhere}
h2{margin:56px 0 16px;padding-top:14px;border-top:2px solid var(--ink);font-size:23px;letter-spacing:-.01em}
h2.setting{margin:24px 0 4px;padding:0;border:0;font-size:16px}h3{margin:32px 0 8px;font-size:17px}
h4{margin:20px 0 4px;font-size:15px}
.verdict{margin:0 0 6px;max-width:56rem;font-size:22px;line-height:1.4;overflow-wrap:anywhere}
.subset{margin:0 0 16px;padding:12px 16px;border-left:4px solid var(--warm);background:var(--tint)}
.subset ul{margin:6px 0 0;padding-left:20px}
.caution,.note{margin:0 0 16px;color:var(--soft);font-size:14px}.note{margin-top:12px}
.facts{display:flex;flex-wrap:wrap;gap:1px;margin:20px 0;
padding:1px;background:var(--line)}
.facts div{flex:1 1 auto;min-width:112px;padding:10px 14px;background:var(--paper)}
dt{color:var(--soft);font-size:13px}dd{margin:0;overflow-wrap:anywhere}
nav{display:flex;flex-wrap:wrap;gap:6px 22px;font-size:15px}a{color:var(--blue);text-underline-offset:3px}
figure{margin:8px 0 20px}
.scroll{display:grid;container-type:inline-size;overflow-x:auto;margin:0 0 16px}
@media screen{.scroll::before,.scroll::after{grid-area:1/1;height:20px;font-size:13px}
.scroll::before{content:"more →";position:sticky;left:0;width:100cqi;color:var(--blue);text-align:right}
.scroll::after{content:"";justify-self:end;width:4rem;background:var(--paper);z-index:1}
tbody th[scope=row],thead tr>:first-child{position:sticky;left:0;background:var(--paper)}}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:8px 32px;align-items:start}
.three{display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:8px 24px;align-items:start}
table{width:100%;border-collapse:collapse;font-size:14px;line-height:1.4}
caption{caption-side:bottom;padding-top:10px;color:var(--soft);text-align:left}
caption span{display:inline-block;position:sticky;left:0;max-width:100cqi}
th,td{padding:8px 12px 8px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th:last-child,td:last-child{padding-right:0}thead th{color:var(--soft);font-weight:500;vertical-align:bottom}
thead tr:first-child:not(:last-child)>*{padding-bottom:0;border:0}th[scope=colgroup]{color:var(--ink);font-weight:600}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}tbody th{font-weight:600}
.name{white-space:normal;overflow-wrap:anywhere;min-width:5.5rem}
.n+:not(.n){padding-left:12px}.whole{white-space:nowrap}
th[scope=colgroup]{text-align:center}small{display:block;color:var(--soft);font-size:12px;font-weight:400}
i{display:inline-block;width:10px;height:10px;margin-right:8px;border-radius:3px;background:var(--c)}
th:has(>i){padding-left:18px}th>i{margin-left:-18px}
th.method{padding-top:22px;font-size:15px}th.method span{display:inline-block;margin-right:18px}
.fields{max-width:22rem;overflow-wrap:anywhere}
tr:has(+tr>.said)>*{border-bottom:0}.said{padding-top:0;color:var(--soft)}
.said span{display:inline-block;position:sticky;left:0;max-width:100cqi}
.eyes{display:inline-block;padding:1px 9px;border:1px solid;border-radius:9px;font-size:13px}
.each{color:var(--warm)}.sum{color:var(--blue)}.parties{color:var(--cool)}
details{margin:6px 0}td details{margin:0}summary{cursor:pointer}main>section>details>summary{color:var(--blue)}
pre{margin:8px 0;padding:16px;overflow-x:auto;background:var(--tint);border:1px solid var(--line);border-radius:6px;
font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,monospace}
footer{margin-top:56px;padding-top:12px;border-top:1px solid var(--line);color:var(--soft);font-size:13px}
@media screen and (max-width:760px){body{padding:24px 16px}h1{font-size:28px}.verdict{font-size:19px}
.pair{grid-template-columns:1fr}.fields{min-width:9rem}tbody th{max-width:9rem;overflow-wrap:break-word}
.flows thead{display:none}.flows tr{display:flex;flex-wrap:wrap;gap:2px 14px;padding:8px 0;
border-bottom:1px solid var(--line)}.flows tr>*{max-width:none;padding:0;border:0}.ledger .fields{flex-basis:100%}
.flows [data-of]::before{content:attr(data-of) " ";color:var(--soft)}.scores tbody th{flex-basis:100%;padding-left:18px}
.ledger tr:has(+tr>.said,+tr>.of){border:0;padding-bottom:0}}
@media print{@page{margin:14mm}
.facts{background:none;gap:0}.facts div{border:1px solid var(--line);margin:0 -1px -1px 0}
body{max-width:none;padding:0;font-size:11pt}nav{display:none}h1{font-size:24pt}
h2,h3,h4,tr:has(.method),tr:has(+tr>.said){break-after:avoid}figure,tr,dl{break-inside:avoid}
.scroll{display:block;container-type:normal;overflow:visible}
table{font-size:8pt}small{font-size:7pt}th,td{padding-right:6px}
tbody th{overflow-wrap:anywhere}.name{min-width:0}.n,.whole{white-space:normal}
pre{white-space:pre-wrap}
section>details::details-content{content-visibility:visible;block-size:auto}
*{print-color-adjust:exact}}
"""
