"""Bars as SVG, in a few lines: a median, and the least and the most that were seen."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

WIDTH, LABEL, FIGURE, ROW, TOP = 760, 170, 150, 26, 44
OURS, THEIRS, RANGE = "#2563eb", "#94a3b8", "#0f172a"


@dataclass(frozen=True)
class Bar:
    label: str
    median: float
    least: float
    most: float
    text: str
    ours: bool


def bars(title: str, subtitle: str, rows: list[Bar]) -> str:
    """Lengths are in proportion to the largest value seen; nothing is cut off and no axis is bent."""
    room = WIDTH - LABEL - FIGURE
    largest = max((bar.most for bar in rows), default=0.0) or 1.0
    height = TOP + ROW * len(rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(title, quote=True)}" font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="19" font-weight="600" fill="#0f172a">{escape(title)}</text>',
        f'<text x="12" y="36" font-size="11" fill="#64748b">{escape(subtitle)}</text>',
    ]
    for number, bar in enumerate(rows):
        y = TOP + ROW * number
        long, least, most = (room * value / largest for value in (bar.median, bar.least, bar.most))
        middle = y + ROW / 2
        parts += [
            f'<text x="{LABEL - 8}" y="{middle + 4:.1f}" text-anchor="end" fill="#0f172a">{escape(bar.label)}</text>',
            f'<rect x="{LABEL}" y="{y + 4}" width="{max(long, 1):.1f}" height="{ROW - 8}" rx="2" '
            f'fill="{OURS if bar.ours else THEIRS}"/>',
            f'<path d="M{LABEL + least:.1f} {middle:.1f}H{LABEL + most:.1f}" stroke="{RANGE}" stroke-width="1.5"/>',
            f'<text x="{LABEL + max(long, most) + 8:.1f}" y="{middle + 4:.1f}" fill="#334155">{escape(bar.text)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
