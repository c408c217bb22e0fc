/* ttv nvs eval: PSNR and SSIM of a checkpoint on the scenes of an index, beside two baselines. */
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_eval.h"
#include "tools/sections.h"

typedef struct EvalOptions {
    char checkpoint[CONFIG_TEXT], root[CONFIG_TEXT], split[CONFIG_TEXT];
    char index[CONFIG_TEXT], write_index[CONFIG_TEXT], save_images[CONFIG_TEXT];
    int weights; /* WeightsChoice */
    double turn_max;
    int64_t gap_min, gap_max, inputs, targets, seed;
} EvalOptions;

static EvalOptions options;

#define FIELD(name) offsetof(EvalOptions, name)
static const Option eval_options[] = {
    {"checkpoint", OPTION_STRING, FIELD(checkpoint), "", 0, 0, NULL, "checkpoint",
     "weights file or run folder (its best, else its last)"},
    {"weights", OPTION_CHOICE, FIELD(weights), "auto", 0, 0, WEIGHTS_CHOICES, "weights",
     WEIGHTS_HELP},
    {"root", OPTION_STRING, FIELD(root), "", 0, 0, NULL, "data-dir",
     "posed scenes: folders or tar files, with commas between"},
    {"split", OPTION_STRING, FIELD(split), "test", 0, 0, NULL, "split", "split; empty: all"},
    {"index", OPTION_STRING, FIELD(index), "", 0, 0, NULL, "index",
     "JSON of scenes with context and target frames; empty: one is generated"},
    {"write_index", OPTION_STRING, FIELD(write_index), "", 0, 0, NULL, "write-index",
     "write the index that was used here"},
    {"save_images", OPTION_STRING, FIELD(save_images), "", 0, 0, NULL, "save-images",
     "keep the target views below this folder, as truth/SCENE/FRAME.png and render/..., for ttv "
     "psnr"},
    {"gap_min", OPTION_INT, FIELD(gap_min), "25", 1, 1e6, NULL, "gap-min",
     "generated index: least frames between first and last view, less in shorter scenes"},
    {"gap_max", OPTION_INT, FIELD(gap_max), "192", 1, 1e6, NULL, "gap-max",
     "generated index: most frames between first and last view"},
    {"inputs", OPTION_INT, FIELD(inputs), "2", 1, VIEW_MAX - 1, NULL, "inputs",
     "generated index: input views of a scene"},
    {"targets", OPTION_INT, FIELD(targets), "3", 1, VIEW_MAX - 1, NULL, "targets",
     "generated index: target views of a scene"},
    {"turn_max", OPTION_FLOAT, FIELD(turn_max), "0", 0, 180, NULL, "turn-max",
     "generated index: most degrees between the first and the last camera; 0: any"},
    {"seed", OPTION_INT, FIELD(seed), "0", 0, 9.0e15, NULL, "seed", "of the generated index"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[2];
    list[0] = (Section){"nvs_eval", eval_options, &options};
    list[1] = section_of("nvs_model");
    *count = 2;
    return list;
}

static const Section *hidden(int *count) {
    static Section list[3];
    *count = sections_fill(list, 3, "scenes nvs_train run");
    return list;
}

static Status find_index(NvsEval *e) {
    const ViewRecipe r = {.gap_min = options.gap_min,
                          .gap_max = options.gap_max,
                          .inputs = options.inputs,
                          .targets = options.targets,
                          .clamp = true,
                          .turn_max = options.turn_max};
    if (options.index[0]) {
        TRY(eval_index_read(options.index, &e->index));
    } else {
        if (r.inputs + r.targets > VIEW_MAX)
            return status_set(STATUS_USAGE, "--inputs and --targets: at most %d views together",
                              (int)VIEW_MAX);
        TRY(view_recipe_check(&r));
        TRY(eval_index_generate(e->set, &r, (uint64_t)options.seed, &e->index));
    }
    if (options.write_index[0]) TRY(eval_index_write(&e->index, options.write_index));
    return eval_index_resolve(&e->index, e->set);
}

static Status evaluate(NvsEval *e, const Config *config) {
    if (!options.checkpoint[0] || !options.root[0])
        return status_set(STATUS_USAGE, "--checkpoint and --data-dir are needed");
    TRY(scene_set_open(options.root, options.split, &e->set));
    TRY(find_index(e));
    TRY(nvs_model_open(&e->model, options.checkpoint, (WeightsChoice)options.weights, config));
    TRY(nvs_eval_run(e));
    nvs_eval_print_reasons(e);
    if (common.json) return nvs_eval_print_json(e);
    nvs_eval_print_text(e);
    return STATUS_OK;
}

static void eval_free(NvsEval *e) {
    eval_index_free(&e->index);
    if (e->set) scene_set_close(e->set);
    nvs_model_close(&e->model);
    view_scratch_free(&e->scratch);
    mem_free(e->pixels);
    mem_free(e->rendered);
    mem_free(e->baseline);
    mem_free(e->scenes);
}

/* Scenes that the index leaves out or that are not there are normal; faults are not. */
static int verdict(const NvsEval *e) {
    const EvalCounts n = eval_index_counts(&e->index);
    if (e->evaluated == 0) complain("no scene was evaluated");
    return e->evaluated == 0 || n.faulty > 0 || n.failed > 0 ? status_exit_code(STATUS_DATA) : 0;
}

static int run(Config *config, int argc, char **argv) {
    if (argc > 0) return cli_usage(&command_nvs_eval, "unexpected argument '%s'", argv[0]);
    NvsEval e = {.save = options.save_images};
    Status s = evaluate(&e, config);
    const int code = s == STATUS_OK ? verdict(&e) : cli_fail(s);
    eval_free(&e);
    return code;
}

const Command command_nvs_eval = {
    .name = "nvs eval",
    .summary = "PSNR and SSIM of rendered views, beside two baselines",
    .synopsis = "ttv nvs eval --checkpoint RUN --data-dir SCENES [flags]",
    .examples = "  ttv nvs eval --checkpoint runs/re10k --data-dir re10k --index "
                "evaluation_index_re10k.json\n"
                "  ttv nvs eval --checkpoint runs/re10k --data-dir re10k --json\n",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
