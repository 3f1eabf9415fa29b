# SPDX-License-Identifier: GPL-2.0
"""The HTML page of a report: one file without links to others. A click on the head of a column sorts its table."""

import html
import re

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 100rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
div { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left; white-space: nowrap }
th { cursor: pointer; position: sticky; top: 0; background: #f4f4f4 }
th[aria-sort=ascending]::after { content: " \\2191" }
th[aria-sort=descending]::after { content: " \\2193" }
svg { max-width: 100%; height: auto }
"""
# Numbers are sorted by value, and before text.
SCRIPT = """
const value = row => column => {
  const text = row.cells[column].textContent, number = parseFloat(text.replaceAll(",", ""));
  return [isNaN(number) ? Infinity : number, text];
};
for (const head of document.querySelectorAll("th"))
  head.onclick = () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1, body = head.closest("table").tBodies[0];
    for (const other of head.parentNode.cells) other.ariaSort = null;
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    body.append(...[...body.rows].sort((a, b) => {
      const [[x, s], [y, t]] = [a, b].map(row => value(row)(head.cellIndex));
      return sign * (x === y ? s.localeCompare(t) : x - y);
    }));
  };
"""


def table(header, rows):
    """Return a table. The rows are lists of text."""
    def cells(tag, row):
        return "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row)

    head = f"<thead><tr>{cells('th', header)}</tr></thead>" if any(header) else ""
    return f"<div><table>{head}<tbody>" + "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows) + "</tbody></table></div>"


def page(title, paragraphs, tables, plots):
    """Return the page of a report. `tables` are (title, header, rows), and `plots` are (title, SVG document)."""
    parts = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{html.escape(text)}</p>" for text in paragraphs)]
    for number, (name, svg) in enumerate(plots):
        # Identifiers of elements are unique in a file only.
        svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>plot{number}-", svg[svg.index("<svg"):])
        parts.append(f"<h2>{html.escape(name)}</h2><div>{svg}</div>")
    parts += [f"<h2>{html.escape(name)}</h2>{table(header, rows)}" for name, header, rows in tables]
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
            f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + f"\n<script>{SCRIPT}</script></body></html>\n")
