#!/bin/bash
# ttv plot: the curves of run folders.
. "$(dirname "$0")/train_lib.sh"
is_png() { # FILE
    checks=$((checks + 1))
    [ "$(head -c 4 "$1" 2>/dev/null | tail -c 3)" = PNG ] || fail "$1 is no PNG"
}

run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --model-ema -o first
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --val-split none -o second

# ---- one run: the pictures lie in it ----
run 0 plot first
quiet_err
says 'first: step 20, loss '
says 'best '
for picture in loss accuracy lr grad_norm speed; do
    says "first/plots/$picture.png"
    is_png "first/plots/$picture.png"
done
checks=$((checks + 1))
[ ! -e first/plots/psnr.png ] || fail 'a PSNR of a classifier was drawn'
run 0 inspect first # still a run folder

# ---- several: one folder for all ----
run 2 plot first second
tells 'need a folder'
run 0 report first/ second -o both --json
json_ok out
is_png both/loss.png
if command -v python3 >/dev/null; then
    equal 'runs' "$(json_get out '[(r["run"], r["step"]) for r in d["runs"]]')" "[('first/', 20), ('second', 10)]"
    equal 'no score' "$(json_get out 'd["runs"][1]["score"]')" None
    equal 'the best score of the metrics' "$(json_get out 'round(float(d["runs"][0]["best"]), 3)')" \
        "$(awk -F, '$1 == "validate" {for (i = 11; i <= 15; i += 4) if ($i > best) best = $i} END {print best + 0}' first/metrics.csv |
            python3 -c 'print(round(float(input()), 3))')"
fi
checks=$((checks + 1))
cmp -s both/loss.png first/plots/loss.png && fail 'two runs give the picture of one'

# ---- a page: everything in one file, and names are no markup ----
mv second 'a<b>"c&d'
run 0 plot first 'a<b>"c&d' -o page --html
says 'page/report.html'
checks=$((checks + 1))
grep -qE '(src|href)="?https?:|<script' page/report.html && fail 'the page fetches something'
equal 'a table row for each run' "$(grep -c '^<tr><td>' page/report.html)" 2
equal 'markup in a name' "$(grep -c 'a&lt;b&gt;&quot;c&amp;d' page/report.html) $(grep -c 'a<b>' page/report.html)" '2 0'
if command -v python3 >/dev/null; then
    cat >page.py <<'PY'
import base64, html.parser, os, re
text = open("page/report.html").read()
class Checker(html.parser.HTMLParser):
    stack = []
    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"): self.stack.append(tag)
    def handle_endtag(self, tag): assert self.stack.pop() == tag, tag
checker = Checker()
checker.feed(text)
assert not checker.stack
pictures = [base64.b64decode(b) for b in re.findall(r'data:image/png;base64,([^"]*)"', text)]
assert sorted(pictures) == sorted(open("page/" + n, "rb").read() for n in os.listdir("page") if n.endswith(".png"))
assert "[optim]" in text
PY
    checks=$((checks + 1))
    python3 page.py || fail 'the page is not what it should be'
fi
run 0 plot first --html --json
says '"report":"report.html"'
mv 'a<b>"c&d' second

# ---- what is refused, what is passed over ----
run 2 plot
run 4 plot nowhere
tells 'nowhere/metrics.csv'
mkdir broken
printf 'step,loss\n1,2\n' >broken/metrics.csv
run 3 plot broken
tells 'kind,step'
: >broken/metrics.csv
run 3 plot broken
printf 'kind,step,loss\n' >broken/metrics.csv
run 3 plot broken
tells 'no row'
printf 'kind,step,loss\r\ntrain,1,2\r\ntrain,x,3\r\n\r\ntrain\r\ntrain,2,\r\ntrain,4,1.5,9,9\r\ntrain,5,7' >broken/metrics.csv
run 0 plot broken # fields that are missing or no numbers; a last line that is being written
says 'step 4, loss 1.5'
is_png broken/plots/loss.png
run 4 plot first -o /dev/null/x
# ---- many values: their mean over a pale band of all of them ----
mkdir long
awk 'BEGIN {print "kind,step,epoch,loss"; for (i = 1; i <= 20000; i++) printf "train,%d,0,%.6f\n", i, i % 2}' >long/metrics.csv
run 0 plot long
if command -v python3 >/dev/null; then
    cat >colours.py <<'PY'
import struct, sys, zlib
b, at, data = open(sys.argv[1], "rb").read(), 8, b""
while at < len(b):
    n, kind = struct.unpack(">I4s", b[at:at + 8])
    if kind == b"IHDR": width, height = struct.unpack(">II", b[at + 8:at + 16])
    if kind == b"IDAT": data += b[at + 8:at + 8 + n]
    at += 12 + n
raw, row, seen = zlib.decompress(data), bytes(3 * width), {}
for y in range(height):
    kind, line = raw[y * (3 * width + 1)], bytearray(raw[y * (3 * width + 1) + 1:(y + 1) * (3 * width + 1)])
    for i in range(3 * width):
        left, up, corner = (line[i - 3] if i > 2 else 0), row[i], (row[i - 3] if i > 2 else 0)
        guess = left + up - corner
        paeth = min((left, up, corner), key=lambda v: abs(guess - v))
        line[i] = line[i] + (0, left, up, (left + up) // 2, paeth)[kind] & 255
    row = bytes(line)
    for x in range(0, 3 * width, 3): seen[row[x:x + 3]] = seen.get(row[x:x + 3], 0) + 1
blue, pale = seen.get(bytes((31, 119, 180)), 0), seen.get(bytes((180, 209, 230)), 0)
print(400 < blue < 4000, pale > 50000)
PY
    equal 'line and band' "$(python3 colours.py long/plots/loss.png)" 'True True'
fi
if [ -w /dev/full ]; then
    "$TTV" plot first >/dev/full 2>err
    equal 'exit code on /dev/full' $? 4
fi
finish
