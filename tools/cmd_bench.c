/* `ttv bench ops|step|nvs|ttt|loader|all`: what is fast, and what limits it. */
#include "tools/bench.h"

#include <string.h>
#include <unistd.h>

#include "tools/cli.h"

#include "version.h"

static BenchOptions options;

#define FIELD(name) offsetof(BenchOptions, name)
static const Option bench_options[] = {
    {"batch_size", OPTION_INT, FIELD(batch), "16", 1, 65536, NULL, "batch-size",
     "images or scenes per pass, images per loader batch"},
    {"seconds", OPTION_FLOAT, FIELD(seconds), "0.5", 0.001, 3600, NULL, "seconds",
     "time spent on one measurement"},
    {"filter", OPTION_STRING, FIELD(filter), "", 0, 0, NULL, "filter",
     "ops: only kernels whose name holds this; ttt: forms, e.g. \"V0,V2 parallel\""},
    {"inputs", OPTION_INT, FIELD(inputs), "2", 1, 1024, NULL, "inputs",
     "nvs: input views of a scene"},
    {"targets", OPTION_INT, FIELD(targets), "6", 1, 1024, NULL, "targets",
     "nvs: target views of a training scene"},
    {"tokens", OPTION_STRING, FIELD(tokens), "32768", 0, 0, NULL, "tokens",
     "ttt: sequence lengths, separated by commas"},
    {"fast_heads", OPTION_INT, FIELD(fast_heads), "4", 1, 4096, NULL, "fast-heads",
     "ttt: heads of the layer"},
    {"head_width", OPTION_INT, FIELD(head_width), "384", 1, 65536, NULL, "head-width",
     "ttt: channels of a head"},
    {"chunk", OPTION_INT, FIELD(chunk), "2048", 1, 1e9, NULL, "chunk", "ttt: tokens of a chunk"},
    {"composed", OPTION_BOOL, FIELD(composed), "false", 0, 0, NULL, "composed",
     "ttt: the reference form, made of single operations"},
    {"profile", OPTION_BOOL, FIELD(profile), "false", 0, 0, NULL, "profile",
     "ttt: also where the time of a pass goes, call by call"},
    {"output", OPTION_STRING, FIELD(output), "", 0, 0, NULL, "output",
     "ttt: begin of the names of a table (.csv) and a plot (.png) of time against length"},
    {"data", OPTION_STRING, FIELD(data), "", 0, 0, NULL, "data-dir",
     "loader: data set root or tar; without one, pictures of 500x375 are made"},
    {"images", OPTION_INT, FIELD(images), "64", 1, 100000, NULL, "images",
     "loader: how many pictures to make"},
    {"workers", OPTION_INT, FIELD(workers), "0", 0, 1024, NULL, "workers",
     "loader threads; 0: one per processor"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[3];
    list[0] = (Section){"bench", bench_options, &options};
    *count = 1 + sections_fill(list + 1, 2, "model nvs_model");
    return list;
}

static const Section *hidden(int *count) {
    static Section list[9];
    *count =
        sections_fill(list, 9, "data preprocess augment loader optim train run scenes nvs_train");
    return list;
}

/* The parts in their order under "all", which leaves nvs and ttt out: at its usual sizes they are
 * work for a card. step comes first: its memory report wants a fresh device. */
static const struct {
    const char *name;
    Status (*run)(Bench *b);
    bool alone;
} parts[] = {{"step", bench_step, false},
             {"ops", bench_ops, false},
             {"loader", bench_loader, false},
             {"nvs", bench_nvs, true},
             {"ttt", bench_ttt, true}};
enum { PARTS = sizeof parts / sizeof *parts };

static bool part_wanted(const char *word, int i) {
    return (strcmp(word, "all") == 0 && !parts[i].alone) || strcmp(word, parts[i].name) == 0;
}

static void report_machine(const Bench *b) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (b->json) {
        json_pair_string(b->json, "version", TTV_VERSION);
        json_pair_string(b->json, "git", TTV_GIT_ID);
        json_pair_string(b->json, "device", b->device->name);
        json_pair_string(b->json, "activations", dtype_name(b->act));
        json_pair_int(b->json, "cores", cores);
        json_pair_int(b->json, "threads", common.threads);
    } else {
        out_printf("ttv %s (%s) on %s, activations %s, %ld cores\n", TTV_VERSION, TTV_GIT_ID,
                   b->device->name, dtype_name(b->act), cores);
    }
}

static Status run_parts(Bench *b, const char *word) {
    report_machine(b);
    for (int i = 0; i < PARTS; i++)
        if (part_wanted(word, i)) TRY(status_context(parts[i].run(b), "bench %s", parts[i].name));
    return STATUS_OK;
}

static Status bench_run(const Config *config, const char *word, JsonWriter *json) {
    VitttConfig model = settings.model;
    int act;
    Bench b = {.options = &options, .config = config, .model = &model, .json = json};
    TRY(vittt_config_resolve(&model, config));
    TRY(cli_device(&b.device, &act));
    b.act = (DType)act;
    Status s = run_parts(&b, word);
    device_close(b.device);
    return s;
}

static int run(Config *config, int argc, char **argv) {
    if (argc != 1)
        return cli_usage(&command_bench, "one of ops, step, nvs, ttt, loader or all is expected%s",
                         argc ? "" : ", none was given");
    bool known = strcmp(argv[0], "all") == 0;
    for (int i = 0; i < PARTS; i++) known = known || part_wanted(argv[0], i);
    if (!known)
        return cli_usage(&command_bench,
                         "there is no bench '%s'; ops, step, nvs, ttt, loader or all", argv[0]);

    if (!common.json) {
        Status s = bench_run(config, argv[0], NULL);
        return s == STATUS_OK ? 0 : cli_fail(s);
    }
    JsonWriter json;
    json_writer_init(&json);
    json_begin_object(&json);
    Status s = bench_run(config, argv[0], &json);
    json_end_object(&json);
    if (s == STATUS_OK) s = json.status;
    if (s == STATUS_OK) out_printf("%s\n", json.text);
    json_writer_free(&json);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_bench = {
    .name = "bench",
    .aliases = "benchmark",
    .summary = "measure kernels, whole passes and the image loader",
    .synopsis = "ttv bench [flags] ops|step|nvs|ttt|loader|all",
    .examples = "  ttv bench all\n"
                "  ttv bench step --model vittt_tiny --batch-size 32 --precision bf16\n"
                "  ttv bench nvs --nvs-model l12_d768_ttt1x --batch-size 32 --device cuda\n"
                "  ttv bench nvs --set nvs_model.inter_multi=2 --batch-size 32 --device cuda\n"
                "  ttv bench ttt --batch-size 1 --tokens 32768,131072 --device cuda\n"
                "  ttv bench ops --filter vittt --json\n"
                "  ttv bench loader --data-dir /data/imagenet --workers 8\n",
    .letters = "b=batch-size j=workers m=model",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
