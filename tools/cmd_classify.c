/* `ttv classify PATH...`: pictures to class names. The same preprocessing and forward pass as eval.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/classify.h"
#include "tools/cli.h"

static ClassifyOptions options;

#define FIELD(name) offsetof(ClassifyOptions, name)
static const Option classify_options[] = {
    {"checkpoint", OPTION_STRING, FIELD(checkpoint), "", 0, 0, NULL, "checkpoint",
     "weights: a .safetensors file, a shard index, or a run folder (its best)"},
    {"weights", OPTION_CHOICE, FIELD(weights), "auto", 0, 0, WEIGHTS_CHOICES, "weights",
     WEIGHTS_HELP},
    {"topk", OPTION_INT, FIELD(topk), "5", 1, 1e6, NULL, "topk", "classes to print per picture"},
    {"format", OPTION_CHOICE, FIELD(format), "auto", 0, 0, "auto|text|csv|jsonl|json", "format",
     "of the results (json: one array); auto: jsonl with --json, by the ending of --results-file, "
     "else text"},
    {"results_format", OPTION_CHOICE, FIELD(results_format), "auto", 0, 0,
     "auto|text|csv|jsonl|json", "results-format", "the same as --format"},
    {"results_file", OPTION_STRING, FIELD(results_file), "", 0, 0, NULL, "results-file",
     "write the results here, completely or not at all, instead of to standard output"},
    {"recursive", OPTION_BOOL, FIELD(recursive), "false", 0, 0, NULL, "recursive",
     "look into folders in folders, too"},
    {"files_from", OPTION_STRING, FIELD(files_from), "", 0, 0, NULL, "files-from",
     "read names of pictures from this file, one a line; -: from standard input"},
    {"null", OPTION_BOOL, FIELD(null_separated), "false", 0, 0, NULL, "null",
     "names in --files-from end in NUL (find -print0)"},
    {"labels", OPTION_STRING, FIELD(labels), "", 0, 0, NULL, "labels",
     "readable class names: one a line in index order, or index<TAB>name, or folder<TAB>name"},
    {"label_type", OPTION_CHOICE, FIELD(label_type), "name", 0, 0, "name|index|both", "label-type",
     "what to print for a class (csv and jsonl hold the index in any case)"},
    {"output_type", OPTION_CHOICE, FIELD(output_type), "prob", 0, 0, "prob|logit", "output-type",
     "probabilities, or scores as the model gives them"},
    {"batch_size", OPTION_INT, FIELD(batch), "16", 1, 65536, NULL, "batch-size",
     "pictures per forward pass; results do not depend on it"},
    {"workers", OPTION_INT, FIELD(workers), "0", 0, 256, NULL, "workers",
     "decoding threads; 0: one per processor"},
    {"exif_orientation", OPTION_CHOICE, FIELD(exif), "apply", 0, 0, "apply|ignore",
     "exif-orientation", "turn pictures as their EXIF tag says (eval ignores it)"},
    {"on_corrupt", OPTION_CHOICE, FIELD(on_corrupt), "skip", 0, 0, "skip|fail", "on-corrupt",
     "a picture that cannot be read: go on (exit code 3 at the end), or stop there"},
    {"print_preprocess", OPTION_BOOL, FIELD(print_preprocess), "false", 0, 0, NULL,
     "print-preprocess", "say what happens to a picture before the model sees it"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[3];
    list[0] = (Section){"classify", classify_options, &options};
    *count = 1 + sections_fill(list + 1, 2, "model preprocess");
    return list;
}

static const Section *hidden(int *count) {
    static Section list[6];
    *count = sections_fill(list, 6, "data augment loader optim train run");
    return list;
}

/* ---- set-up ---- */

static bool ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

static ResultFormat result_format(void) {
    if (options.format > 0) return (ResultFormat)(options.format - 1);
    if (options.results_format > 0) return (ResultFormat)(options.results_format - 1);
    if (common.json) return FORMAT_JSONL;
    if (ends_with(options.results_file, ".csv")) return FORMAT_CSV;
    if (ends_with(options.results_file, ".jsonl")) return FORMAT_JSONL;
    if (ends_with(options.results_file, ".json")) return FORMAT_JSON;
    return FORMAT_TEXT;
}

/* On stdout only where it cannot spoil rows. */
static void print_preprocess(const Classifier *c, bool rows_follow) {
    char text[512];
    preprocess_text(&c->model.preprocess, text, sizeof text);
    const char *exif = options.exif == EXIF_APPLY ? "applied" : "ignored";
    if (options.print_preprocess && !rows_follow)
        out_printf("preprocess: EXIF orientation %s; %s\n", exif, text);
    else if (options.print_preprocess || common.verbose)
        note("preprocess: EXIF orientation %s; %s", exif, text);
}

static Status set_up(Classifier *c, Config *config, int count, char **paths) {
    InputOptions inputs = {options.recursive, options.null_separated, options.files_from};
    TRY(inputs_open(&inputs, count, paths, &c->inputs));
    TRY(model_open(&c->model, options.checkpoint, (WeightsChoice)options.weights, config));
    if (options.labels[0]) TRY(model_read_labels(&c->model, options.labels));
    int64_t n = c->model.config.classes;
    c->topk = options.topk < n ? options.topk : n;
    c->decode = data_image_options(&settings.data);
    c->decode.apply_orientation = options.exif == EXIF_APPLY;
    TRY(predictor_open(&c->predictor, &c->model, options.batch));
    return classifier_reserve(c);
}

static Status classify_all(Classifier *c) {
    ResultStyle style = {result_format(), (LabelType)options.label_type, options.output_type != 0,
                         c->topk};
    print_preprocess(c, style.format != FORMAT_TEXT);
    TRY(results_open(&style, options.results_file, &c->model, &c->writer));
    /* Rows on the same terminal are progress enough. */
    bool watched = isatty(STDERR_FILENO) && (options.results_file[0] || !isatty(STDOUT_FILENO));
    Status s;
    while ((s = classifier_next(c)) == STATUS_OK && !out_failed())
        if (watched) progress_line(10, "%lld pictures", (long long)c->done);
    progress_end();
    /* Rows before the picture that stopped the walk stand; after other failures there is no file.
     */
    bool keep = s == STATUS_OK || s == STATUS_END ||
                (options.on_corrupt == ON_CORRUPT_FAIL && c->failed > 0);
    ResultWriter *w = c->writer;
    c->writer = NULL;
    if (!keep) results_abort(w);
    char message[1024];
    snprintf(message, sizeof message, "%s", status_message());
    if (keep) TRY(results_commit(w));
    return s == STATUS_OK || s == STATUS_END ? STATUS_OK : status_set(s, "%s", message);
}

static void tear_down(Classifier *c) {
    results_abort(c->writer);
    classifier_free(c);
    predictor_close(&c->predictor);
    model_close(&c->model);
    inputs_close(c->inputs);
}

static int finish(const Classifier *c) {
    int64_t passed_over = inputs_passed_over(c->inputs);
    if (passed_over > 0)
        note("%lld files whose names do not end in .jpg, .jpeg or .png were passed over",
             (long long)passed_over);
    if (c->done == 0) note("no pictures were named");
    if (c->not_finite > 0) {
        complain("no scores for %lld of %lld pictures: the weights are damaged, or --precision is "
                 "too narrow for them ('ttv inspect --stats' tells which)",
                 (long long)c->not_finite, (long long)c->done);
        return status_exit_code(STATUS_NUMERIC);
    }
    if (c->failed == 0) return 0;
    note("%lld of %lld pictures could not be read", (long long)c->failed, (long long)c->done);
    return status_exit_code(STATUS_DATA);
}

static int run(Config *config, int argc, char **argv) {
    bool nothing = argc == 0 && !options.files_from[0];
    Classifier c = {.options = &options};
    if (!options.checkpoint[0]) return cli_usage(&command_classify, "--checkpoint is missing");
    if (nothing && !options.print_preprocess)
        return cli_usage(&command_classify, "no pictures: name files or folders, or --files-from");
    Status s = set_up(&c, config, argc, argv);
    if (s == STATUS_OK && nothing)
        print_preprocess(&c, false);
    else if (s == STATUS_OK)
        s = classify_all(&c);
    int code = s != STATUS_OK ? cli_fail(s) : nothing ? 0 : finish(&c);
    tear_down(&c);
    return code;
}

const Command command_classify = {
    .name = "classify",
    .aliases = "predict|cls predict|vittt classify",
    .summary = "name what pictures show",
    .synopsis = "ttv classify [flags] --checkpoint PATH PICTURE|FOLDER|-...",
    .examples =
        "  ttv classify --checkpoint runs/digits picture.png\n"
        "  ttv classify --checkpoint runs/digits --recursive photos --format csv >found.csv\n"
        "  find . -name '*.jpg' -print0 | ttv classify --checkpoint w.safetensors "
        "--files-from - --null --json\n"
        "  curl -s URL | ttv classify --checkpoint w.safetensors --topk 1 -\n",
    .letters = "b=batch-size j=workers m=model r=recursive k=topk",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
