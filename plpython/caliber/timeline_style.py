"""Timeline: the style of the page, light and dark."""

from __future__ import annotations

# Each kind has a colour with a contrast of at least 3 to 1 on its ground, in both.
_LIGHT = """
--page:#f6f7f9;--card:#fff;--ink:#1b2230;--soft:#5b6577;--line:#e1e5ec;--odd:#f8f9fb;--rail:#cfd5df;
--message:#2563eb;--handoff:#c2570c;--delegation:#7c3aed;--conflict:#d41f3d;--lock:#0b7f75;
--trajectory:#1b2230;--scope:#64748b;--turn:#64748b;--artifact:#15803d;--note:#a16207;--variable:#64748b;
--checkpoint:#64748b;--context:#64748b;--event:#64748b;--hot:#fff3c4
"""
_DARK = """
--page:#0f131a;--card:#171c25;--ink:#e7ebf2;--soft:#9aa5b8;--line:#2a3240;--odd:#1b212c;--rail:#3a4455;
--message:#6ea8ff;--handoff:#ff9d4d;--delegation:#b794ff;--conflict:#ff6b81;--lock:#3fc9bb;
--trajectory:#e7ebf2;--scope:#93a1b8;--turn:#93a1b8;--artifact:#5fd38a;--note:#e3b64a;--variable:#93a1b8;
--checkpoint:#93a1b8;--context:#93a1b8;--event:#93a1b8;--hot:#4a3f12
"""
_KINDS = "".join(
    f".k-{kind}{{--c:var(--{kind})}}"
    for kind in (
        "message", "handoff", "delegation", "conflict", "lock", "trajectory", "scope", "turn", "artifact",
        "note", "variable", "checkpoint", "context", "event",
    )
)  # fmt: skip

_REST = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header,main,footer{max-width:1240px;margin:0 auto;padding:0 20px}
header{padding-top:26px}
h1{margin:0;font-size:25px;line-height:1.25;overflow-wrap:anywhere}
h2{font-size:17px;margin:30px 0 10px}
.status{display:inline-block;vertical-align:middle;margin-left:6px;padding:1px 10px;border-radius:99px;
font-size:13px;font-weight:600;border:1px solid currentColor;color:var(--scope)}
.s-active{color:var(--message)}.s-completed{color:var(--artifact)}.s-failed{color:var(--conflict)}
.s-suspended{color:var(--note)}
.facts{margin:6px 0 0;color:var(--soft)}.facts b{color:var(--ink);font-weight:600}
.outcome{margin:6px 0 0;overflow-wrap:anywhere}
.id{margin:2px 0 0;color:var(--soft);font:12px ui-monospace,SFMono-Regular,Menlo,monospace}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:18px 0 12px;padding:0;font-size:13px}
.legend li{display:flex;align-items:center;gap:6px}.legend i{color:var(--soft);font-style:normal}
.cut{margin:0 0 10px;padding:8px 12px;border-left:3px solid var(--note);background:var(--card);
border-radius:0 6px 6px 0;font-size:14px}
.chart{display:flex;background:var(--card);border:1px solid var(--line);border-radius:10px;overflow:hidden}
.lanes{flex:0 0 172px;width:172px;min-width:0;border-right:1px solid var(--line)}
.lane-name{padding:8px 12px;display:flex;flex-direction:column;justify-content:flex-start;overflow:hidden}
.lane-name span{font-weight:600;font-size:13px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.lane-name small{color:var(--soft);font-size:12px;line-height:1.3;white-space:nowrap;
overflow:hidden;text-overflow:ellipsis}
.lane-name:nth-child(odd){background:var(--odd)}
.scroll{flex:1;min-width:0;overflow-x:auto}
.scroll svg{display:block;min-width:100%}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft)}
.odd{fill:var(--odd)}.rail{stroke:var(--rail);stroke-width:1}
.tick line{stroke:var(--line);stroke-width:1}.tick text{fill:var(--ink)}.tick .since{fill:var(--soft)}
.pause rect{fill:var(--rail);opacity:.22}.pause text{text-anchor:middle;font-size:10px}
.now line{stroke:var(--conflict);stroke-dasharray:3 3}.now text{fill:var(--conflict)}
.hit{fill:transparent}
.dot,.tip{fill:var(--c)}
.arrow{stroke:var(--c);stroke-width:1.6;fill:none}
.k-handoff .arrow{stroke-width:3}.k-delegation .arrow{stroke-width:2.2}
.arrow.offer{stroke-dasharray:5 3}
.k-conflict .arrow{stroke-width:2;stroke-dasharray:2 3}
.ring{fill:var(--card);stroke:var(--c);stroke-width:1.8}
.bg{fill:var(--card);stroke:var(--c);stroke-width:1.6}
.cross{fill:none;stroke:var(--c);stroke-width:2}.on{fill:none;stroke:var(--card);stroke-width:1.8}
.band{fill:var(--c);opacity:.16}.edge{stroke:var(--c);stroke-width:1.5;opacity:.6}
.span{fill:var(--c);fill-opacity:.22;stroke:var(--c);stroke-width:1.2}
.k-lock text{fill:var(--ink);font-size:10px}
svg a:hover g,svg a:focus g{filter:brightness(1.15)}
svg a:hover .hit,svg a:focus .hit,g:target .hit{fill:var(--c);fill-opacity:.22}
svg a{outline:none}
table{border-collapse:collapse;width:100%;background:var(--card);border:1px solid var(--line);font-size:14px}
th,td{text-align:left;vertical-align:top;padding:6px 12px;border-top:1px solid var(--line)}
td{overflow-wrap:anywhere}
thead th:nth-child(4){width:58%}
thead th{font-size:12px;color:var(--soft);font-weight:600;border-top:0}
tr.day th{background:var(--odd);font-size:12px;color:var(--soft)}
tr:target td{background:var(--hot)}
.time{white-space:nowrap;font-variant-numeric:tabular-nums}
.time a{color:inherit;text-decoration-color:var(--rail)}
.time small{display:block;color:var(--soft)}
.who{font-weight:600;max-width:180px}
.kind{color:var(--c);font-weight:600;white-space:nowrap}
.details,.below{color:var(--soft);font-size:13px}
.below{font-style:italic}
.empty{margin:18px 0;padding:20px;color:var(--soft)}
footer{color:var(--soft);font-size:12px;padding-top:18px;padding-bottom:30px}
@media(max-width:640px){
header,main,footer{padding-left:12px;padding-right:12px}
h1{font-size:21px}.lanes{flex-basis:92px;width:92px}.lane-name{padding:8px}.lane-name span{font-size:12px}
.lane-name small{font-size:11px}
table,tbody,tr,td{display:block}thead{display:none}
tr{border-top:1px solid var(--line);padding:6px 0}tr.day th{display:block;border:0}
td{border:0;padding:1px 12px}.time,.who,td:nth-child(3){display:inline-block;padding-right:0}
.time small{display:inline;margin-left:6px}.who{max-width:none}
}
@media print{.scroll{overflow:visible}.chart{overflow:visible}}
"""

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}{_KINDS}{_REST}"
).replace("\n", "")
