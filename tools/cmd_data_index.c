/* `ttv data index SCENES OUT.json`: which views of posed scenes an evaluation renders, from which
 * others; or what an index finds among the scenes at hand. */
#include <string.h>

#include "tools/cli.h"
#include "tools/nvs_eval.h"
#include "tools/nvs_options.h"

typedef struct IndexOptions {
    NvsIndex views;
    char split[CONFIG_TEXT];
    int64_t seed;
} IndexOptions;

static IndexOptions options;

static const Option index_options[] = {
    {"split", OPTION_STRING, offsetof(IndexOptions, split), "test", 0, 0, NULL, "split",
     "split; empty: all"},
    NVS_INDEX_OPTIONS(IndexOptions),
    {"seed", OPTION_INT, offsetof(IndexOptions, seed), "0", 0, 9.0e15, NULL, "seed",
     "of the generated index"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"index", index_options, &options};
    *count = 1;
    return list;
}

static Status report(const EvalIndex *x) {
    const EvalCounts n = eval_index_counts(x);
    const struct {
        const char *name;
        int64_t count;
    } rows[] = {{"ready", n.ready}, {"null", n.null}, {"missing", n.missing}, {"faulty", n.faulty}};
    eval_index_print_reasons(x, EVAL_REASONS, "--json");
    if (!common.json) {
        out_printf("%lld scenes:", (long long)x->count);
        for (int i = 0; i < 4; i++)
            out_printf("%s %lld %s", i > 0 ? "," : "", (long long)rows[i].count, rows[i].name);
        out_text("\n");
        return STATUS_OK;
    }
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_int(&w, "scenes", x->count);
    for (int i = 0; i < 4; i++) json_pair_int(&w, rows[i].name, rows[i].count);
    json_key(&w, "reasons");
    json_begin_object(&w);
    for (int64_t i = 0; i < x->count; i++)
        if (x->entries[i].reason) json_pair_string(&w, x->entries[i].scene, x->entries[i].reason);
    json_end_object(&w);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    SceneSet *set = NULL;
    EvalIndex index = {0};
    NvsIndex views = options.views;
    if (argc < 1 || argc > 2)
        return cli_usage(&command_data_index, "scenes and the file to write are expected");
    if (argc == 2 && strlen(argv[1]) >= sizeof views.write_index)
        return cli_usage(&command_data_index, "the file's name is too long");
    if (argc == 2 && views.write_index[0])
        return cli_usage(&command_data_index,
                         "the file to write is named twice: %s and --write-index %s", argv[1],
                         views.write_index);
    if (argc == 2) strcpy(views.write_index, argv[1]);
    if (!views.index[0] && !views.write_index[0])
        return cli_usage(&command_data_index, "no file to write the index to was named");
    Status s = scene_set_open(argv[0], options.split, &set);
    if (s == STATUS_OK) s = nvs_index_find(&views, (uint64_t)options.seed, set, &index);
    if (s == STATUS_OK) s = report(&index);
    const EvalCounts n = eval_index_counts(&index);
    eval_index_free(&index);
    scene_set_close(set);
    if (s != STATUS_OK) return cli_fail(s);
    return n.ready == 0 || n.faulty > 0 ? EXIT_NEGATIVE : 0;
}

const Command command_data_index = {
    .name = "data index",
    .summary = "choose views of posed scenes to evaluate on, or check an index of them",
    .synopsis = "ttv data index [--index FILE] [flags] SCENES [OUT.json]",
    .examples = "  ttv data index /data/re10k index.json --gap-min 45 --gap-max 135\n"
                "  ttv data index --index evaluation_index_re10k.json /data/re10k --json\n",
    .sections = sections,
    .run = run,
};
