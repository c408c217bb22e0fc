/* ttv nvs eval: PSNR, SSIM and LPIPS of a checkpoint on the scenes of an index, beside two
 * baselines. */
#include "tools/cli.h"
#include "tools/nvs_eval.h"
#include "tools/nvs_options.h"
#include "tools/ranks.h"
#include "tools/sections.h"

typedef struct EvalOptions {
    NvsInput input;
    NvsIndex views;
    char save_images[CONFIG_TEXT], lpips_weights[CONFIG_TEXT];
    int64_t seed;
    bool per_view;
} EvalOptions;

static EvalOptions options;

#define FIELD(name) offsetof(EvalOptions, name)
static const Option eval_options[] = {
    NVS_INPUT_OPTIONS(EvalOptions, "test"),
    NVS_INDEX_OPTIONS(EvalOptions),
    {"save_images", OPTION_STRING, FIELD(save_images), "", 0, 0, NULL, "save-images",
     "keep the views below this folder, targets as truth/SCENE/FRAME.png and render/..., for ttv "
     "psnr, and a page that shows them, index.html"},
    {"lpips_weights", OPTION_STRING, FIELD(lpips_weights), "", 0, 0, NULL, "lpips-weights",
     LPIPS_WEIGHTS_HELP},
    {"per_view", OPTION_BOOL, FIELD(per_view), "false", 0, 0, NULL, "per-view",
     "a row of the table for each target view, too (--json always has them)"},
    {"seed", OPTION_INT, FIELD(seed), "0", 0, 9.0e15, NULL, "seed", "of the generated index"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[3];
    list[0] = (Section){"nvs_eval", eval_options, &options};
    list[1] = section_of("nvs_model");
    list[2] = section_of("dist");
    *count = 3;
    return list;
}

static const Section *hidden(int *count) {
    static Section list[3];
    *count = sections_fill(list, 3, "scenes nvs_train run");
    return list;
}

static Status open_all(NvsEval *e, const Config *config) {
    const NvsInput *in = &options.input;
    if (options.lpips_weights[0]) TRY(lpips_open(options.lpips_weights, &e->network));
    TRY(scene_set_open(in->root, in->split, &e->set));
    TRY(nvs_index_find(&options.views, (uint64_t)options.seed, e->set, &e->index));
    return nvs_model_open(&e->model, in->checkpoint, (WeightsChoice)in->weights, config);
}

static Status evaluate(NvsEval *e, const Config *config) {
    TRY(ranks_agree_all(open_all(e, config)));
    TRY(ranks_check_cards(e->model.device));
    TRY(ranks_agree_all(nvs_eval_run(e)));
    eval_index_print_reasons(&e->index, EVAL_REASONS, "--json");
    if (e->save[0] && output_is_mine()) TRY(nvs_eval_page(e));
    if (common.json) return nvs_eval_print_json(e);
    nvs_eval_print_text(e);
    return STATUS_OK;
}

/* Scenes that the index leaves out or that are not there are normal; faults are not. */
static int verdict(const NvsEval *e) {
    const EvalCounts n = eval_index_counts(&e->index);
    if (e->evaluated == 0 && output_is_mine()) complain("no scene was evaluated");
    return e->evaluated == 0 || n.faulty > 0 || n.failed > 0 ? status_exit_code(STATUS_DATA) : 0;
}

static int run(Config *config, int argc, char **argv) {
    if (argc > 0) return cli_usage(&command_nvs_eval, "unexpected argument '%s'", argv[0]);
    if (!options.input.checkpoint[0] || !options.input.root[0])
        return cli_usage(&command_nvs_eval, "--checkpoint and --data-dir are needed");
    NvsEval e = {.save = options.save_images,
                 .per_view = options.per_view,
                 .checkpoint = options.input.checkpoint,
                 .root = options.input.root,
                 .split = options.input.split,
                 .index_file = options.views.index};
    int code;
    if (ranks_launch(&code)) return code;
    Status s = ranks_join();
    if (s == STATUS_OK) s = evaluate(&e, config);
    code = s == STATUS_OK ? verdict(&e) : cli_fail(s);
    nvs_eval_free(&e);
    ranks_leave(s == STATUS_OK);
    return code;
}

const Command command_nvs_eval = {
    .name = "nvs eval",
    .summary = "PSNR, SSIM and LPIPS of rendered views, beside two baselines",
    .synopsis = "ttv nvs eval --checkpoint RUN --data-dir SCENES [flags]",
    .examples = "  ttv nvs eval --checkpoint runs/re10k --data-dir re10k --index "
                "evaluation_index_re10k.json\n"
                "  ttv nvs eval --checkpoint runs/re10k --data-dir re10k --json\n"
                "  ttv nvs eval --checkpoint runs/re10k --data-dir re10k --lpips-weights "
                "lpips.safetensors\n",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
