# A manual page of section 5 from a part of docs/: awk -v name=ttv-scenes -v version=0.1.0 -v about='what it is'
# [-v sections='Data sets|Checkpoints'] -f scripts/man_page.awk docs/scenes.md. Knows what those files use of Markdown:
# headings, paragraphs, lists, tables (a row becomes a term and its text), code, emphasis, links.
function inline(text) {
    gsub(/\\\|/, "\001", text)
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    while (match(text, /`[^`]*`/))
        text = substr(text, 1, RSTART - 1) "\\fB" substr(text, RSTART + 1, RLENGTH - 2) "\\fR" substr(text, RSTART + RLENGTH)
    while (match(text, /\*\*[^*]*\*\*/))
        text = substr(text, 1, RSTART - 1) "\\fB" substr(text, RSTART + 2, RLENGTH - 4) "\\fR" substr(text, RSTART + RLENGTH)
    while (match(text, /\[[^]]*\]\([^)]*\)/)) {
        link = substr(text, RSTART, RLENGTH)
        sub(/\]\(.*/, "", link)
        text = substr(text, 1, RSTART - 1) substr(link, 2) substr(text, RSTART + RLENGTH)
    }
    gsub("\001", "|", text)
    if (text ~ /^[.']/) text = "\\&" text
    return text
}
# Lines of a paragraph stay together, since code may be broken across them.
function flush_text() { if (held != "") print inline(held); held = "" }
function heading(macro, text) { printf "%s \"%s\"\n", macro, inline(text); fresh = 1; space = 0 }
function row(text,   n, cells, i, rest) {
    gsub(/\\\|/, "\002", text)
    n = split(text, cells, / *\| */)
    rest = cells[3]
    for (i = 4; i < n; i++) rest = rest "; " cells[i]
    gsub("\002", "\\|", rest)
    gsub("\002", "\\|", cells[2])
    gsub(/`/, "", cells[2])
    printf ".TP\n\\fB%s\\fR\n%s\n", inline(cells[2]), inline(rest)
}
BEGIN {
    printf ".TH \"%s\" 5 \"\" \"ttv %s\" \"File Formats\"\n.nh\n.ad l\n", toupper(name), version
    printf ".SH NAME\n%s \\- %s\n", inline(name), inline(about)
    count = split(sections, list, "|")
    shown = count == 0
}
/^```|^#|^\||^$|^\* / { flush_text() }
/^```/ { if (shown) print code ? ".fi" : ".PP\n.nf"; code = !code; fresh = code; next }
code { if (shown) { gsub(/\\/, "\\e"); gsub(/-/, "\\-"); if ($0 ~ /^[.']/) printf "\\&"; print }; next }
/^## / {
    title = substr($0, 4)
    if (count > 0) { shown = 0; for (i = 1; i <= count; i++) if (list[i] == title) shown = 1 }
    if (shown) heading(".SH", toupper(title))
    next
}
!shown { next }
/^# / { heading(".SH", "DESCRIPTION"); next }
/^### / { heading(".SS", substr($0, 5)); next }
/^\|[- |]+$/ { table = 1; next }
/^\|/ { if (table) row($0); fresh = 0; next } # the row above the line of dashes is the heading
{ table = 0 }
/^$/ { space = 1; next }
/^\* / { print ".IP \\(bu 2"; held = substr($0, 3); fresh = space = 0; next }
{
    sub(/^ +/, "")
    if (space && !fresh) print ".PP"
    fresh = space = 0
    held = held == "" ? $0 : held " " $0
}
END { flush_text(); print ".SH SEE ALSO\n\\fBttv\\fR(1), \\fBttv\\-config\\fR(5), \\fBttv\\-data\\fR(5), \\fBttv\\-scenes\\fR(5), \\fBttv\\-checkpoint\\fR(5)" }
