"""The frame of report.html: one file that needs no network and no script."""

from outrider.bench.theme import variables

STYLE = f"""
:root {{ color-scheme: light dark; --page: #f3f5f8; --line: #d9dee5; {variables(dark=False)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #11151b; --line: #2b333f; {variables(dark=True)} }}
}}
@media print {{ details:not([open]) {{ display: none; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }}
main {{ max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }}
h1 {{ font-size: 1.9rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }}
h2 {{ font-size: 1.25rem; margin: 48px 0 14px; }}
h3 {{ font-size: 1rem; margin: 0 0 8px; }}
p {{ margin: 0; }}
code {{ font: 0.92em ui-monospace, monospace; }}
.lead, figcaption, .note {{ color: var(--muted); }}
.lead {{ margin-top: 8px; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 16px;
  margin: 28px 0 0; }}
.tile, figure, .table {{ background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }}
.tile {{ padding: 16px 20px; }}
.tile b {{ display: block; font-size: 2rem; line-height: 1.2; font-weight: 650;
  font-variant-numeric: tabular-nums; }}
.tile span {{ color: var(--muted); font-size: 0.9rem; }}
.plots {{ display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 20px;
  grid-auto-flow: dense; }}
figure {{ margin: 0; padding: 18px 20px; min-width: 0; display: flex; flex-direction: column; }}
figure.wide {{ grid-column: 1 / -1; }}
figure .scroll {{ overflow-x: auto; }}
figure svg {{ display: block; width: 100%; height: auto; }}
figcaption {{ margin-top: auto; padding-top: 12px; font-size: 0.9rem; max-width: 80ch; }}
.note {{ margin-top: 16px; font-size: 0.9rem; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: 0.86rem;
  font-variant-numeric: tabular-nums; }}
th, td {{ padding: 7px 9px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }}
tr:last-child > td, tr:last-child > th {{ border-bottom: 0; }}
thead th {{ color: var(--muted); font-weight: 500; vertical-align: bottom; }}
tbody th {{ font-weight: 600; }}
.left {{ text-align: left; }}
tr > :first-child {{ padding-left: 18px; }}
tr > :last-child {{ padding-right: 18px; }}
td small {{ color: var(--muted); font-size: 0.85em; }}
.facts td {{ white-space: normal; overflow-wrap: anywhere; width: 100%; }}
.facts th {{ vertical-align: top; }}
.side {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 20px;
  align-items: start; }}
details summary {{ cursor: pointer; padding: 6px 0; margin: 14px 0 8px; font-weight: 600; }}
@media (max-width: 800px) {{
  main {{ padding: 24px 14px 40px; }}
  .plots {{ grid-template-columns: minmax(0, 1fr); }}
  figure.wide svg {{ min-width: 720px; }}
  figure:not(.wide) svg {{ min-width: 400px; }}
}}
"""

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath fill='%230072b2' d='M2 13V9h3v4zm4.5 0V6h3v7zM11 13V2h3v11z'/%3E%3C/svg%3E"
)


def page(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="{ICON}">
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
