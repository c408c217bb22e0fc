#!/bin/bash
# ttv nvs train on a card: recorded steps with skipped ones, exact resume, the same scores as on the CPU. Skipped without a card.
. "$(dirname "$0")/nvs_lib.sh"

card=("${tiny[@]}" --device "${TTV_TEST_CARD:-cuda}" --set nvs_model.width=64 --set nvs_model.head_width=64 --model-ema --val-interval 0)
"$TTV" nvs train "${card[@]}" --steps 6 --dry-run >out 2>err
if [ $? -eq 5 ]; then
    skip "no card: $(tail -n 1 err)"
    checks=0
    finish
fi
run 0 nvs train "${card[@]}" --steps 24 -o whole
run 0 nvs train "${card[@]}" --steps 24 --max-steps 9 -o parts
run 0 nvs train --resume parts --no-progress
for kind in '' .ema; do
    checks=$((checks + 1))
    cmp -s whole/checkpoints/*24$kind.safetensors parts/checkpoints/*24$kind.safetensors || fail "resumed weights$kind differ"
done
checks=$((checks + 1))
grep -q 'could not be recorded' whole/log.txt && fail 'steps were not recorded'
run 0 nvs train "${card[@]}" --steps 24 --skip-norm 0.05 --val-split none -o choosy
skipped=$(grep -c '^skip,' choosy/metrics.csv)
equal 'skipped steps are those above' "$skipped" \
    "$(awk -F, '($1 == "train" || $1 == "skip") && $6 > 0.05 {s[$2]} END {print length(s)}' choosy/metrics.csv)"
run 5 nvs train "${card[@]}" --steps 10 --batch-size 65536 --view-height 512 --view-width 512 -o huge
tells 'the largest batch that fits is'
run 0 nvs eval --checkpoint whole --data-dir rooms --device "${TTV_TEST_CARD:-cuda}" --json
if command -v python3 >/dev/null; then
    there=$(json_get out 'd["model"]["psnr"]')
    run 0 nvs eval --checkpoint whole --data-dir rooms --device cpu --json
    equal 'PSNR of card and CPU' "$(json_get out "abs(d['model']['psnr'] - $there) < 0.05")" True
fi
finish
