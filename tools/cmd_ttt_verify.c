/* `ttv ttt verify CHECKPOINT [PICTURE|SCENES...]`: each fast-weight layer of a trained model
 * against its linear-attention form, which is computed from the layer's own queries, keys and
 * values. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "core/memory.h"
#include "core/rng.h"
#include "datasets/image.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/verify.h"

typedef struct VerifyOptions {
    int weights;
    int64_t random, limit, seed;
    bool recursive;
} VerifyOptions;
static VerifyOptions options;

#define FIELD(name) offsetof(VerifyOptions, name)
static const Option verify_options[] = {
    {"weights", OPTION_CHOICE, FIELD(weights), "auto", 0, 0, WEIGHTS_CHOICES, "weights",
     WEIGHTS_HELP},
    {"random", OPTION_INT, FIELD(random), "2", 1, 1e6, NULL, "random",
     "pictures of noise (novel views: samples) to use where none are named"},
    {"limit", OPTION_INT, FIELD(limit), "0", 0, 1e9, NULL, "limit",
     "use at most this many pictures (novel views: scenes); 0: all"},
    {"seed", OPTION_INT, FIELD(seed), "1", 0, 1e15, NULL, "seed", "of the noise"},
    {"recursive", OPTION_BOOL, FIELD(recursive), "false", 0, 0, NULL, "recursive",
     "look into folders in folders, too"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[4];
    list[0] = (Section){"verify", verify_options, &options};
    *count = 1 + sections_fill(list + 1, 3, "model preprocess nvs_model");
    return list;
}

static const Section *hidden(int *count) {
    static Section list[8];
    *count = sections_fill(list, 8, "data augment loader optim train run scenes nvs_train");
    return list;
}

/* ---- pictures ---- */

typedef struct Pictures {
    Model *model;
    Verifier *verifier;
    uint8_t *pixels;
    int64_t used, failed;
} Pictures;

static Status use_noise(Pictures *p) {
    const int64_t side = p->model->preprocess.image_size;
    for (int64_t i = 0; i < options.random; i++) {
        Rng r = rng_stream((uint64_t)options.seed, 0, (uint64_t)i, 0);
        for (int64_t j = 0; j < side * side * 3; j++) p->pixels[j] = (uint8_t)rng_below(&r, 256);
        TRY(verifier_picture(p->verifier, p->pixels));
        p->used++;
        progress_line(5, "%lld of %lld pictures", (long long)p->used, (long long)options.random);
    }
    return STATUS_OK;
}

static Status use_file(Pictures *p, const char *path) {
    const ImageOptions decode = data_image_options(&settings.data);
    Image image = {0};
    ImageInfo info;
    ResizeScratch scratch = {0};
    Status s = image_read(path, &decode, &image, &info);
    if (s == STATUS_OK) s = preprocess_apply(&p->model->preprocess, &image, p->pixels, &scratch);
    resize_scratch_free(&scratch);
    image_free(&image);
    TRY(s);
    TRY(verifier_picture(p->verifier, p->pixels));
    p->used++;
    progress_line(5, "%lld pictures", (long long)p->used);
    return STATUS_OK;
}

static Status use_files(Pictures *p, int count, char **paths) {
    const InputOptions o = {.recursive = options.recursive};
    Inputs *in;
    Input next;
    TRY(inputs_open(&o, count, paths, &in));
    Status s;
    while ((s = inputs_next(in, &next)) == STATUS_OK) {
        if (options.limit > 0 && p->used == options.limit) break;
        s = next.error ? status_set(STATUS_DATA, "%s", next.error) : use_file(p, next.path);
        if (s == STATUS_DATA || s == STATUS_IO) { /* told, and counted in the exit code */
            complain("%s", status_message());
            p->failed++;
            s = STATUS_OK;
        }
        if (s != STATUS_OK) break;
    }
    inputs_close(in);
    return s == STATUS_END ? STATUS_OK : s;
}

/* ---- report ---- */

static const IdentityControl *weakest(const IdentityResult *r) {
    const IdentityControl *least = NULL;
    for (int i = 0; i < r->controls; i++)
        if (!least || r->control[i].error < least->error) least = &r->control[i];
    return least;
}

static void print_rows(const VerifyReport *p) {
    const VerifyRow *rows = p->rows;
    out_printf("%-6s %-10s %10s %10s %10s %12s %7s  %s\n", "layer", "branch", "f64", "layer",
               "largest", "cosine", "start", "weakest control (must be large)");
    for (int64_t i = 0; i < p->count; i++) {
        const IdentityResult *r = &rows[i].result;
        const IdentityControl *least = weakest(r);
        out_printf("%-6lld %-10s %10.2e %10.2e %10.2e %12.9f %7.4f  %s %.2e%s%s%s\n",
                   (long long)rows[i].layer, rows[i].branch, r->f64, r->layer, r->most, r->cosine,
                   r->start, least ? least->name : "none", least ? least->error : 0,
                   rows[i].note[0] ? "; no linear form: " : "", rows[i].note,
                   verify_row_holds(&rows[i], p->limits) ? "" : "  FAILS");
    }
    out_printf("%lld pictures; limits: f64 %.0e, layer %.0e\n", (long long)p->used, p->limits.f64,
               p->limits.layer);
}

static void write_row(JsonWriter *w, const VerifyRow *row, VerifyLimits limits) {
    json_begin_object(w);
    json_pair_int(w, "layer", row->layer);
    json_pair_string(w, "branch", row->branch);
    json_pair_bool(w, "linear_form", row->note[0] == '\0');
    if (row->note[0]) json_pair_string(w, "note", row->note);
    json_pair_number(w, "f64", row->result.f64);
    json_pair_number(w, "layer_error", row->result.layer);
    json_pair_number(w, "largest", row->result.most);
    json_pair_number(w, "cosine", row->result.cosine);
    json_pair_number(w, "start_share", row->result.start);
    json_key(w, "controls");
    json_begin_object(w);
    for (int i = 0; i < row->result.controls; i++)
        json_pair_number(w, row->result.control[i].name, row->result.control[i].error);
    json_end_object(w);
    json_pair_bool(w, "holds", verify_row_holds(row, limits));
    json_end_object(w);
}

static Status print_json(const VerifyReport *p, bool holds) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "checkpoint", p->path);
    json_pair_int(&w, "pictures", p->used);
    json_pair_int(&w, "failed", p->failed);
    json_pair_number(&w, "limit_f64", p->limits.f64);
    json_pair_number(&w, "limit_layer", p->limits.layer);
    json_key(&w, "layers");
    json_begin_array(&w);
    for (int64_t i = 0; i < p->count; i++) write_row(&w, &p->rows[i], p->limits);
    json_end_array(&w);
    json_pair_bool(&w, "holds", holds);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static Status print_report(const VerifyReport *p, bool *holds) {
    *holds = p->count > 0;
    for (int64_t i = 0; i < p->count; i++)
        *holds = *holds && verify_row_holds(&p->rows[i], p->limits);
    if (common.json) return print_json(p, *holds);
    print_rows(p);
    int64_t bent = 0;
    for (int64_t i = 0; i < p->count; i++) bent += p->rows[i].note[0] != 0;
    if (!*holds)
        out_printf("NOT every layer equals its linear-attention form\n");
    else if (bent == 0)
        out_printf("every layer equals its linear-attention form\n");
    else
        out_printf("every read equals its linear-attention form; %lld of %lld rows have no linear "
                   "form: they are functions of such reads, and equal those\n",
                   (long long)bent, (long long)p->count);
    return STATUS_OK;
}

/* ---- the command ---- */

static Status verify(Pictures *p, int count, char **paths) {
    const int64_t side = p->model->preprocess.image_size;
    TRY(verifier_open(p->model, &p->verifier));
    TRY(mem_alloc((void **)&p->pixels, side * side, 3, "a picture"));
    if (count == 0)
        note("no pictures were named: %lld of noise are used", (long long)options.random);
    const Status s = count > 0 ? use_files(p, count, paths) : use_noise(p);
    progress_end();
    if (s == STATUS_OK && p->used == 0) return status_set(STATUS_DATA, "no picture could be read");
    return s;
}

static int finish(Status s, const VerifyReport *r) {
    bool holds = false;
    if (s == STATUS_OK) s = print_report(r, &holds);
    if (s != STATUS_OK) return cli_fail(s);
    if (!holds) return EXIT_NEGATIVE;
    return r->failed > 0 ? status_exit_code(STATUS_DATA) : 0;
}

static int run_classifier(Config *config, int argc, char **argv) {
    Model model;
    Status s = model_open(&model, argv[0], (WeightsChoice)options.weights, config);
    if (s != STATUS_OK) return cli_fail(s);
    Pictures p = {.model = &model};
    VerifyReport r = {.path = model.path};
    s = verify(&p, argc - 1, argv + 1);
    if (s == STATUS_OK) {
        r.rows = verifier_rows(p.verifier, &r.count);
        r.limits = verify_limits(model.act, verifier_has_muon(p.verifier));
        r.used = p.used;
        r.failed = p.failed;
    }
    const int code = finish(s, &r);
    verifier_close(p.verifier);
    mem_free(p.pixels);
    model_close(&model);
    return code;
}

/* The arguments as one list of scenes, commas between (mem_free). */
static Status join_roots(int count, char **roots, char **out) {
    size_t length = 1;
    for (int i = 0; i < count; i++) length += strlen(roots[i]) + 1;
    TRY(mem_alloc((void **)out, (int64_t)length, 1, "names of scenes"));
    for (int i = 0; i < count; i++) {
        if (i > 0) strcat(*out, ",");
        strcat(*out, roots[i]);
    }
    return STATUS_OK;
}

static int run_nvs(Config *config, int argc, char **argv) {
    VerifyReport r = {0};
    char *roots = NULL;
    VerifyNvs what = {.samples = options.random, .seed = (uint64_t)options.seed};
    Status s = argc > 1 ? join_roots(argc - 1, argv + 1, &roots) : STATUS_OK;
    what.scenes = roots;
    if (roots)
        what.samples = options.limit;
    else
        note("no scenes were named: %lld samples of noise are used", (long long)options.random);
    if (s == STATUS_OK) s = verify_nvs(argv[0], (WeightsChoice)options.weights, config, &what, &r);
    const int code = finish(s, &r);
    mem_free(r.owned);
    mem_free(roots);
    return code;
}

static int run(Config *config, int argc, char **argv) {
    if (argc == 0) return cli_usage(&command_ttt_verify, "the checkpoint is missing");
    bool nvs;
    const Status s = nvs_checkpoint(argv[0], (WeightsChoice)options.weights, &nvs);
    if (s != STATUS_OK) return cli_fail(s);
    return nvs ? run_nvs(config, argc, argv) : run_classifier(config, argc, argv);
}

const Command command_ttt_verify = {
    .name = "ttt verify",
    .aliases = "verify",
    .summary = "check that trained fast-weight layers equal their linear-attention form",
    .synopsis = "ttv ttt verify [flags] CHECKPOINT [PICTURE|FOLDER|SCENES...]",
    .examples = "  ttv ttt verify runs/digits\n"
                "  ttv ttt verify --json runs/cifar photos/*.jpg\n"
                "  ttv ttt verify data/nvs_demo.safetensors data/motorcycle.tar\n",
    .letters = "m=model r=recursive",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
