/* Sizes of a hierarchical ViTTT from the shapes of its tensors. */
#include <stdio.h>
#include <string.h>

#include "tools/inspect.h"

/* Dimension i of a tensor of that rank in block `block` of stage `stage`; 0: there is none. */
static int64_t block_dimension(const SafeFile *f, int stage, int64_t block, const char *leaf,
                               int rank, int i) {
    char name[96];
    snprintf(name, sizeof name, "layers.%d.blocks.%lld.%s", stage, (long long)block, leaf);
    const SafeEntry *e = safetensors_find(f, name);
    return e && e->rank == rank ? e->shape[i] : 0;
}

/* Adds "WIDTHxBLOCKSxHEADS"; false when the stage is incomplete. */
static bool add_stage(const SafeFile *f, int stage, VitttConfig *c) {
    const int64_t width = block_dimension(f, stage, 0, "norm1.weight", 1, 0);
    const int64_t heads = block_dimension(f, stage, 0, "attn.w1", 4, 1);
    const int64_t hidden = block_dimension(f, stage, 0, "mlp.fc1.weight", 2, 0);
    int64_t blocks = 0;
    while (block_dimension(f, stage, blocks, "attn.w1", 4, 1) > 0) blocks++;
    if (width <= 0 || heads <= 0 || hidden < width || hidden % width != 0) return false;
    const size_t used = strlen(c->stages);
    const int n = snprintf(c->stages + used, sizeof c->stages - used, "%s%lldx%lldx%lld",
                           used ? "," : "", (long long)width, (long long)blocks, (long long)heads);
    c->mlp_ratio = hidden / width;
    return n > 0 && (size_t)n < sizeof c->stages - used;
}

void recognise_stages(const SafeFile *f, VitttConfig *c) {
    const SafeEntry *head = safetensors_find(f, "head.weight");
    const int64_t side = block_dimension(f, 0, 0, "rope.rotations", 4, 0);
    const int64_t reduction = HIER_REDUCTION >> (HIER_STAGES - 1);
    bool whole = head && head->rank == 2;
    for (int i = 0; i < HIER_STAGES; i++) whole = whole && add_stage(f, i, c);
    c->rope = side > 0;
    c->image_size = side > 0 ? side * reduction : HIER_REDUCTION;
    if (whole) c->classes = head->shape[0];
    if (whole && vittt_config_resolve(c, NULL) == STATUS_OK) return;
    c->depth = 0;
    c->stages[0] = '\0';
}
