/* ttv eval: exact top-1, top-5 and mean loss of a checkpoint over every image of a split. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/confusion.h"
#include "tools/ranks.h"
#include "tools/real_labels.h"
#include "tools/results_csv.h"
#include "tools/run_resume.h"
#include "tools/train_task.h"
#include "tools/worst.h"

/* Their square is counted unasked. */
enum { COUNTED_CLASSES = 2048 };

/* Section [eval]. */
static struct EvalOptions {
    char checkpoint[CONFIG_TEXT];
    char results_file[CONFIG_TEXT], per_class[CONFIG_TEXT], confusion[CONFIG_TEXT];
    char worst[CONFIG_TEXT], real_labels[CONFIG_TEXT];
    int weights; /* WeightsChoice */
    int tta;     /* Tta */
    int classes; /* 1: those present */
} eval;

static const Option eval_options[] = {
    {"checkpoint", OPTION_STRING, offsetof(struct EvalOptions, checkpoint), "", 0, 0, NULL,
     "checkpoint", "weights: a .safetensors file, a shard index, or a run folder (its best)"},
    {"weights", OPTION_CHOICE, offsetof(struct EvalOptions, weights), "auto", 0, 0, WEIGHTS_CHOICES,
     "weights", WEIGHTS_HELP},
    {"results_file", OPTION_STRING, offsetof(struct EvalOptions, results_file), "", 0, 0, NULL,
     "results-file", "CSV with a row for every image"},
    {"per_class", OPTION_STRING, offsetof(struct EvalOptions, per_class), "", 0, 0, NULL,
     "per-class", "CSV with a row for every class: accuracy, precision, what it is taken for"},
    {"confusion", OPTION_STRING, offsetof(struct EvalOptions, confusion), "", 0, 0, NULL,
     "confusion", "PNG of which class is taken for which"},
    {"real_labels", OPTION_STRING, offsetof(struct EvalOptions, real_labels), "", 0, 0, NULL,
     "real-labels", "JSON of reassessed labels (ReaL): top-1 by those, too"},
    {"worst", OPTION_STRING, offsetof(struct EvalOptions, worst), "", 0, 0, NULL, "worst",
     "PNG of the pictures that the model is most wrong about, as it sees them (48 at most)"},
    {"classes", OPTION_CHOICE, offsetof(struct EvalOptions, classes), "all", 0, 0, "all|present",
     "classes",
     "present: only classes that the split has images of can be predicted (sets of some "
     "of ImageNet's classes)"},
    {"tta", OPTION_CHOICE, offsetof(struct EvalOptions, tta), "none", 0, 0, TTA_CHOICES, "tta",
     "average the scores of several views of each picture: flip: it and its mirror image; shift: "
     "both, also moved by one pixel in all directions (18 views)"},
    {0},
};

static const Section *eval_sections(int *count) {
    static Section list[8];
    list[0] = (Section){"eval", eval_options, &eval}; /* help begins with what it is asked for */
    *count = 1 + sections_fill(list + 1, 7, "data preprocess loader model dist");
    return list;
}

static const Section *eval_hidden(int *count) {
    static Section list[8];
    *count = sections_fill(list, 8, "augment optim train run");
    return list;
}

typedef struct Eval {
    Model model;
    ClassList classes;
    Dataset *data;
    Loader *loader;
    Predictor predictor;
    float *logits;
    ResultsCsv *results;
    Confusion confusion;
    Worst worst;
    RealLabels real;
    uint8_t *barred; /* classes without an image; NULL: all can be predicted */
    Score score;
    int64_t corrupt;
    double seconds;
} Eval;

static Status bar_absent(Eval *e) {
    TRY(mem_alloc((void **)&e->barred, e->model.config.classes, 1, "classes without images"));
    memset(e->barred, 1, (size_t)e->model.config.classes);
    for (int64_t i = 0; i < dataset_count(e->data); i++) e->barred[dataset_label(e->data, i)] = 0;
    e->predictor.barred = e->barred;
    return STATUS_OK;
}

static Status open_all(Eval *e, Config *config) {
    TRY(run_take_data(config, eval.checkpoint, "data"));
    TRY(model_open(&e->model, eval.checkpoint, (WeightsChoice)eval.weights, config));
    TRY(run_data_context(model_open_data(&e->model, &e->classes, &e->data)));
    TRY(eval_loader_open(e->data, &e->model.preprocess, settings.loader.batch_size, &e->loader));
    TRY(predictor_open(&e->predictor, &e->model, settings.loader.batch_size));
    if (eval.tta != TTA_NONE) TRY(predictor_average(&e->predictor, (Tta)eval.tta));
    if (eval.classes == 1) TRY(bar_absent(e));
    void *block;
    TRY(mem_alloc(&block, settings.loader.batch_size * e->model.config.classes, sizeof(float),
                  "logits"));
    e->logits = block;
    if (*eval.real_labels) {
        TRY(real_labels_open(&e->real, eval.real_labels, e->model.config.classes));
        TRY(real_labels_fit(&e->real, e->data));
    }
    if (*eval.per_class || *eval.confusion || e->model.config.classes <= COUNTED_CLASSES)
        TRY(confusion_init(&e->confusion, e->model.config.classes));
    if (!*eval.results_file || !output_is_mine()) return STATUS_OK;
    return results_csv_open(eval.results_file, &e->results);
}

static void write_rows(void *user, const HostBatch *b, const float *logits) {
    Eval *e = user;
    confusion_add(&e->confusion, b, logits);
    if (*eval.worst) worst_add(&e->worst, b, logits, e->model.config.classes);
    if (*eval.real_labels) real_labels_add(&e->real, e->data, b, logits, e->model.config.classes);
    if (e->results) results_csv_batch(e->results, e->data, &e->classes, b, logits);
}

/* Each rank met its own. */
static Status count_corrupt(Eval *e) {
    const int64_t own = loader_corrupt_count(e->loader);
    int64_t all[PEERS_MAX];
    TRY(peers_gather(ranks_peers(), &own, all, sizeof own));
    e->corrupt = 0;
    for (int i = 0; i < ranks_count(); i++) e->corrupt += all[i];
    return STATUS_OK;
}

static Status score(Eval *e) {
    double begun = seconds_now();
    signals_catch(train_request_stop);
    TRY(score_all(&e->predictor, e->loader, dataset_count(e->data), e->logits, &e->score,
                  write_rows, e));
    e->seconds = seconds_now() - begun;
    TRY(count_corrupt(e));
    if (!output_is_mine()) return STATUS_OK;
    if (*eval.per_class) TRY(confusion_write_csv(&e->confusion, &e->classes, eval.per_class));
    if (*eval.confusion) TRY(confusion_write_png(&e->confusion, &e->classes, eval.confusion));
    if (*eval.worst)
        TRY(worst_write_png(&e->worst, e->data, &e->classes, &e->model.preprocess, eval.worst));
    if (!e->results) return STATUS_OK;
    ResultsCsv *results = e->results;
    e->results = NULL;
    return results_csv_commit(results);
}

/* ---- the result ---- */

static Status print_json(const Eval *e, const char *preprocessing) {
    const Score *s = &e->score;
    double n = (double)s->scored;
    char decoders[96];
    JsonWriter w;
    image_decoders(decoders, sizeof decoders);
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "checkpoint", e->model.path);
    json_pair_string(&w, "weights", e->model.averaged ? "ema" : "raw");
    json_pair_string(&w, "model", e->model.name);
    json_pair_string(&w, "data", settings.data.root);
    json_pair_string(&w, "split", settings.data.val_split);
    json_pair_number(&w, "top1", 100 * (double)s->top1 / n);
    json_pair_number(&w, "top5", 100 * (double)s->top5 / n);
    json_pair_number(&w, "loss", s->loss_sum / n);
    json_pair_number(&w, "balanced_top1", 100 * confusion_balanced(&e->confusion));
    if (*eval.real_labels) {
        json_pair_number(&w, "real_top1", 100 * (double)e->real.right / (double)e->real.scored);
        json_pair_int(&w, "real_scored", e->real.scored);
    }
    json_pair_int(&w, "images", dataset_count(e->data));
    json_pair_int(&w, "scored", s->scored);
    json_pair_int(&w, "top1_count", s->top1);
    json_pair_int(&w, "top5_count", s->top5);
    json_pair_int(&w, "corrupt", e->corrupt);
    json_pair_int(&w, "left_out", s->left_out);
    json_pair_int(&w, "not_finite", s->not_finite);
    json_pair_number(&w, "seconds", e->seconds);
    json_pair_number(&w, "images_per_s", n / e->seconds);
    json_pair_int(&w, "ranks", ranks_count());
    json_pair_string(&w, "precision", dtype_name(e->model.act));
    json_pair_string(&w, "classes", e->barred ? "present" : "all");
    json_pair_string(&w, "tta", tta_name((Tta)eval.tta));
    json_pair_int(&w, "views", tta_views((Tta)eval.tta));
    json_pair_string(&w, "preprocess", preprocessing);
    json_pair_string(&w, "decoders", decoders);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static Status print_result(const Eval *e, const char *preprocessing) {
    const Score *s = &e->score;
    double n = (double)s->scored;
    char views[64] = "";
    if (common.json) return print_json(e, preprocessing);
    if (eval.tta != TTA_NONE)
        snprintf(views, sizeof views, ", tta %s (mean of %lld views)", tta_name((Tta)eval.tta),
                 (long long)tta_views((Tta)eval.tta));
    out_printf("top-1 %.3f %% (%lld/%lld), top-5 %.3f %%, loss %.5f, %lld left out, %.0f img/s%s\n",
               100 * (double)s->top1 / n, (long long)s->top1, (long long)s->scored,
               100 * (double)s->top5 / n, s->loss_sum / n, (long long)s->left_out, n / e->seconds,
               views);
    if (*eval.real_labels)
        out_printf("by reassessed labels: top-1 %.3f %% (%lld/%lld)\n",
                   100 * (double)e->real.right / (double)e->real.scored, (long long)e->real.right,
                   (long long)e->real.scored);
    return STATUS_OK;
}

static void eval_free(Eval *e) {
    results_csv_abort(e->results);
    mem_free(e->logits);
    mem_free(e->barred);
    confusion_free(&e->confusion);
    real_labels_free(&e->real);
    predictor_close(&e->predictor);
    if (loader_close(e->loader)) dataset_close(e->data);
    class_list_free(&e->classes);
    model_close(&e->model);
}

static Status eval_run(Eval *e, Config *config) {
    char preprocessing[512];
    TRY(ranks_agree_all(open_all(e, config)));
    TRY(ranks_check_cards(e->model.device));
    preprocess_text(&e->model.preprocess, preprocessing, sizeof preprocessing);
    note("%s: %lld parameters%s; %s", e->model.name, (long long)e->model.params.total,
         e->model.averaged ? ", averaged (ema)" : "", preprocessing);
    Status s = score(e);
    progress_end();
    report_corrupt("evaluation", e->data, e->loader);
    TRY(s);
    TRY(print_result(e, preprocessing));
    return output_is_mine() ? score_check(&e->score) : STATUS_OK;
}

static int run(Config *config, int argc, char **argv) {
    if (argc == 1 && !*eval.checkpoint && strlen(argv[0]) < CONFIG_TEXT) {
        strcpy(eval.checkpoint, argv[0]);
        argc = 0;
    }
    if (argc > 0) return cli_usage(&command_eval, "unexpected argument '%s'", argv[0]);
    if (!*eval.checkpoint) return cli_usage(&command_eval, "--checkpoint is missing");
    Eval e = {0};
    int code;
    if (ranks_launch(&code)) return code;
    Status s = ranks_join();
    if (s == STATUS_OK) s = eval_run(&e, config);
    eval_free(&e);
    ranks_leave(s == STATUS_OK || s == STATUS_STOPPED);
    if (s == STATUS_STOPPED && signals_exit_code() != 0) {
        note("stopped; no result");
        return signals_exit_code();
    }
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_eval = {
    .name = "eval",
    .aliases = "validate|cls eval|cls validate|vittt eval",
    .summary = "top-1 and top-5 of a checkpoint on the held-back images",
    .synopsis = "ttv eval [flags] --checkpoint PATH",
    .examples =
        "  ttv eval --checkpoint runs/digits\n"
        "  ttv eval --checkpoint model.safetensors --model vittt_tiny --data-dir imagenet --json\n"
        "  ttv eval --checkpoint runs/digits --results-file predictions.csv\n"
        "  ttv eval --checkpoint runs/digits --per-class classes.csv --confusion confusion.png\n"
        "  ttv eval --checkpoint runs/cifar10 --tta flip\n",
    .letters = "b=batch-size j=workers m=model",
    .sections = eval_sections,
    .hidden = eval_hidden,
    .run = run,
};
