"""Reports: one self-contained HTML page of a run, of a comparison, or of everything that grew from one encoder.

- `page.py`: what a page is made of: sections of tables, charts and text. The same tables become Markdown and LaTeX.
- `charts.py`: charts as inline SVG.
- `run_record.py`: what a run folder holds.
- `shared.py`, `pretraining.py`, `finetuning.py`, `predictions.py`, `prompting.py`, `grid.py`: the sections of each kind
  of page.
- `report.py`: from a folder to the page and its files.
- `ladder_page.py`: the page of a ladder, of parts (`ladder_overview.py`, `ladder_curves.py`, `ladder_reading.py`).
  `ladder_models.py`: which models it has. `ladder_charts.py`, `label_placement.py`: charts with labels beside what they
  name.
- `render.py`, `templates/`: a page as HTML, Markdown and LaTeX.
"""
