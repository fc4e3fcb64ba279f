"""Reports: one self-contained HTML page of a run, of a comparison, or of everything that grew from one encoder.

- `page.py`: what a page is made of: sections of tables, charts and text. The same tables become Markdown and LaTeX.
- `charts.py`: charts as inline SVG; `lineage_tree.py`: the lineage as a tree.
- `run_record.py`: what a run folder holds.
- `shared.py`, `pretraining.py`, `finetuning.py`, `prompting.py`, `grid.py`: the sections of each kind of page.
- `report.py`: from a folder to the page and its files.
- `ladder_page.py`, `ladder_charts.py`, `labels.py`: the page of a ladder, and charts with labels beside what they name.
- `render.py`, `templates/`: a page as HTML, Markdown and LaTeX.
"""
