/* `ttv psnr A B`: how far pictures are apart. Contract: users_expect.md section 7. */
#include <stdio.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/score_run.h"

static PsnrOptions options;

#define FIELD(name) offsetof(PsnrOptions, name)
static const Option psnr_options[] = {
    {"metric", OPTION_STRING, FIELD(metric), "psnr,ssim", 0, 0, NULL, "metric",
     "what to compute, with commas between: psnr, ssim, mse, lpips"},
    {"average", OPTION_CHOICE, FIELD(average), "image", 0, 0, "image|scene|pooled", "average",
     "which PSNR of many pairs leads and is held against --min-psnr: the mean of dB, the mean over "
     "folders of their means, or that of the pooled MSE"},
    {"channels", OPTION_CHOICE, FIELD(channels), "rgb", 0, 0, "rgb|y", "channels",
     "what counts of RGB: all of it, or BT.601's luma (16 to 235, as super-resolution papers)"},
    {"resize", OPTION_CHOICE, FIELD(resize), "never", 0, 0, "never|to-ref", "resize",
     "pictures of another size than their reference A: refused, or resized to it (bicubic)"},
    {"quantize", OPTION_CHOICE, FIELD(quantize), "none", 0, 0, "none|8bit", "quantize",
     "8bit: samples of 16 bits are rounded to 8 first"},
    {"lpips_weights", OPTION_STRING, FIELD(lpips_weights), "", 0, 0, NULL, "lpips-weights",
     LPIPS_WEIGHTS_HELP},
    {"min_psnr", OPTION_FLOAT, FIELD(min_psnr), "0", 0, 0, NULL, "min-psnr",
     "exit code 1 when the PSNR is below this, in dB; unset: no floor"},
    {"pairs", OPTION_STRING, FIELD(pairs), "", 0, 0, NULL, "pairs",
     "a list of pairs instead of A and B: lines A<TAB>B, relative to the list's folder"},
    {"pair_by", OPTION_CHOICE, FIELD(pair_by), "name", 0, 0, "name|order", "pair-by",
     "how the pictures of two folders find each other"},
    {"missing", OPTION_CHOICE, FIELD(missing), "error", 0, 0, "error|allow", "missing",
     "pictures of a folder without a partner: exit code 3 at the end, or only a note"},
    {"recursive", OPTION_BOOL, FIELD(recursive), "false", 0, 0, NULL, "recursive",
     "look into folders in folders, too"},
    {"data_range", OPTION_FLOAT, FIELD(range), "0", 0, 1e9, NULL, "data-range",
     "range of the samples; 0: 255 or 65535 by depth; 1: the same, samples and MSE scaled to 0..1"},
    {"alpha", OPTION_CHOICE, FIELD(alpha), "error", 0, 0, "error|ignore|composite|composite-white",
     "alpha", "pictures with alpha: refused, only colours count, over black, over white"},
    {"crop_border", OPTION_INT, FIELD(border), "0", 0, 1e6, NULL, "crop-border",
     "pixels to cut off at each side first"},
    {"ssim_covariance", OPTION_CHOICE, FIELD(covariance), "sample", 0, 0, "sample|population",
     "ssim-covariance", "121/120 as scikit-image's default, or Wang's 121/121"},
    {"results_file", OPTION_STRING, FIELD(results_file), "", 0, 0, NULL, "results-file",
     "write one CSV row per pair here, completely or not at all"},
    {"error_map", OPTION_STRING, FIELD(error_map), "", 0, 0, NULL, "error-map",
     "write where they differ: a PNG file for one pair, a folder for many"},
    {"error_full", OPTION_FLOAT, FIELD(error_full), "0.25", 1e-6, 1, NULL, "error-full",
     "error that is white in the map, as a share of the range"},
    {"workers", OPTION_INT, FIELD(workers), "0", 0, 256, NULL, "workers",
     "threads; 0: one per processor"},
    {"max_image_pixels", OPTION_INT, FIELD(max_pixels), "178956970", 1, 1e12, NULL,
     "max-image-pixels", "larger pictures are refused before they are decoded"},
    {"plausible", OPTION_BOOL, FIELD(plausible), "true", 0, 0, NULL, "plausible-sizes",
     "refuse pictures whose header claims more pixels than so many bytes can usually hold"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"psnr", psnr_options, &options};
    *count = 1;
    return list;
}

/* 0: a word is unknown (then in `word`) or none was named. */
static unsigned parse_metrics(const char *list, char *word, size_t size) {
    static const char *const names[] = {"psnr", "ssim", "mse", "lpips"};
    unsigned found = 0;
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        unsigned bit = 0;
        for (int i = 0; i < 4; i++)
            if (strlen(names[i]) == n && memcmp(names[i], p, n) == 0) bit = 1U << i;
        snprintf(word, size, "%.*s", (int)n, p);
        if (!bit) return 0;
        found |= bit;
        p += n;
        if (!*p) return found;
    }
}

static Status find_pairs(char **argv, ScorePairs *out) {
    if (options.pairs[0]) return score_pairs_read(options.pairs, out);
    TRY(score_pairs_of(argv[0], argv[1], (PairBy)options.pair_by, options.recursive, out));
    if (out->count == 0 && out->missing_count == 0)
        return status_set(STATUS_DATA, "%s and %s: no pictures", argv[0], argv[1]);
    return STATUS_OK;
}

static Status score_all(ScoreRun *run, char **argv) {
    TRY(find_pairs(argv, &run->pairs));
    TRY(score_run_all(run));
    score_report_faults(run);
    if (options.results_file[0]) TRY(score_report_csv(run, options.results_file));
    if (common.json) return score_report_json(run);
    score_report_text(run);
    return STATUS_OK;
}

static int verdict(const ScoreRun *run) {
    bool incomplete = run->failed > 0 || run->summary.n == 0 ||
                      (run->pairs.missing_count > 0 && options.missing == 0);
    if (incomplete) return status_exit_code(STATUS_DATA);
    double psnr = score_run_psnr(run);
    if (!run->has_floor || psnr >= options.min_psnr) return 0;
    note("PSNR %.6f dB is below the floor of %g dB", psnr, options.min_psnr);
    return EXIT_NEGATIVE;
}

static int run_psnr(Config *config, int argc, char **argv) {
    char word[64];
    ScoreRun run = {.options = &options};
    run.metrics = parse_metrics(options.metric, word, sizeof word);
    if (run.metrics && options.lpips_weights[0]) run.metrics |= METRIC_LPIPS;
    run.has_floor = config_is_set(config, "psnr", "min_psnr");
    if (!run.metrics)
        return cli_usage(&command_psnr, "--metric: '%s' is none of psnr, ssim, mse, lpips", word);
    if (options.pairs[0] && argc > 0)
        return cli_usage(&command_psnr, "--pairs takes the place of A and B");
    if (!options.pairs[0] && argc != 2)
        return cli_usage(&command_psnr, "two files or two folders are needed, not %d", argc);
    Status s = score_all(&run, argv);
    int code = s == STATUS_OK ? verdict(&run) : cli_fail(s);
    score_run_free(&run);
    return code;
}

const Command command_psnr = {
    .name = "psnr",
    .aliases = "score",
    .summary = "PSNR, SSIM, MSE and LPIPS of pictures against their references",
    .synopsis = "ttv psnr [flags] A B",
    .examples = "  ttv psnr truth.png render.png\n"
                "  ttv psnr truth/ renders/ --min-psnr 30 --results-file scores.csv\n"
                "  ttv psnr truth/ renders/ -r --average scene --lpips-weights lpips.safetensors\n"
                "  ttv psnr --pairs pairs.tsv --json\n"
                "  ttv psnr truth.png render.png --error-map where.png\n",
    .letters = "j=workers r=recursive",
    .sections = sections,
    .run = run_psnr,
};
