#include "tools/nvs_options.h"

#include "tools/cli.h"

Status nvs_index_find(const NvsIndex *o, uint64_t seed, const SceneSet *set, EvalIndex *out) {
    const ViewRecipe r = {.gap_min = o->gap_min,
                          .gap_max = o->gap_max,
                          .inputs = o->inputs,
                          .targets = o->targets,
                          .clamp = true,
                          .turn_max = o->turn_max};
    if (o->index[0]) {
        TRY(eval_index_read(o->index, out));
    } else {
        if (r.inputs + r.targets > VIEW_MAX)
            return status_set(STATUS_USAGE, "--inputs and --targets: at most %d views together",
                              (int)VIEW_MAX);
        TRY(view_recipe_check(&r));
        TRY(eval_index_generate(set, &r, seed, out));
    }
    if (o->write_index[0] && output_is_mine()) TRY(eval_index_write(out, o->write_index));
    return eval_index_resolve(out, set);
}
