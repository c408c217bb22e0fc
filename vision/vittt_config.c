/* Section [model]: presets of vittt.md section 1, custom sizes, and their checks. */
#include "vision/vittt.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define FIELD(name) offsetof(VitttConfig, name)

const Option vittt_options[] = {
    {"preset", OPTION_STRING, FIELD(preset), "vittt_tiny", 0, 0, NULL, "model",
     "vittt_tiny, vittt_small, vittt_base, the hierarchical vittt_h_tiny, vittt_h_small, "
     "vittt_h_base, or custom (every size from its own key)"},
    {"image_size", OPTION_INT, FIELD(image_size), "224", 1, 16384, NULL, "img-size",
     "height and width of the input, pixels; a multiple of the patch"},
    {"patch", OPTION_INT, FIELD(patch), "16", 1, 1024, NULL, "patch-size", "patch side, pixels"},
    {"width", OPTION_INT, FIELD(width), "192", 1, 65536, NULL, "width",
     "channels of the residual stream; a multiple of heads"},
    {"depth", OPTION_INT, FIELD(depth), "12", 1, 1024, NULL, "depth", "number of blocks"},
    {"heads", OPTION_INT, FIELD(heads), "6", 1, 4096, NULL, "heads",
     "fast-weight heads; the depthwise branch has the width of one more"},
    {"mlp_ratio", OPTION_INT, FIELD(mlp_ratio), "4", 1, 64, NULL, "mlp-ratio",
     "hidden channels of the MLP per channel"},
    {"classes", OPTION_INT, FIELD(classes), "1000", 1, 1000000, NULL, "num-classes",
     "number of classes"},
    {"drop_path", OPTION_FLOAT, FIELD(drop_path), "0", 0, 0.99, NULL, "drop-path",
     "stochastic depth: rate of the last block, rising from 0 at the first"},
    {"mixer", OPTION_STRING, FIELD(mixer), "base", 0, 0, NULL, "mixer",
     "TTT variant: base, ga_fork, ga_both, q_is_k, v1_only_w1, v3_linear_paper, v3_linear_fork, "
     "v6_linattn_glu_only, v6_linattn_both, v6_fork_only_w1_noclip, mse, mse_fork; or another "
     "mixer: "
     "lact, lact_V1 to lact_V6, lact_ascent, lact_query_is_key, ttt_linear, ttt_mlp, graph:PRESET, "
     "graph:TEXT"},
    {"form", OPTION_CHOICE, FIELD(form), "fused", 0, 0, "fused|composed|pairs", "mixer-form",
     "how the mixer is computed; all give the same numbers (pairs: as linear attention, slow)"},
    {"steps", OPTION_INT, FIELD(steps), "1", 1, 1000, NULL, "mixer-steps",
     "inner gradient steps (ViTTT and graph mixers)"},
    {"chunk", OPTION_INT, FIELD(chunk), "0", 0, 1e9, NULL, "mixer-chunk",
     "tokens of a chunk of a graph mixer; 0: the mixer's own (16 of ttt_*, otherwise all)"},
    {"visibility", OPTION_CHOICE, FIELD(visibility), "own", 0, 0, "own|causal|inclusive|exclusive",
     "mixer-visibility", "whose writes a token of a graph mixer reads"},
    {"scan", OPTION_CHOICE, FIELD(scan), "own", 0, 0, "own|forward|backward|both", "mixer-scan",
     "order of the tokens of a graph mixer; both: the mean of the two"},
    {"loss", OPTION_CHOICE, FIELD(loss), "own", 0, 0, "own|inner|mse|l1|rmse", "mixer-loss",
     "inner loss of a graph mixer"},
    {"recompute", OPTION_BOOL, FIELD(recompute), "false", 0, 0, NULL, "grad-checkpointing",
     "training computes each block twice instead of keeping its activations: much less memory, "
     "about "
     "a third more time, the same numbers"},
    {"stem_depth", OPTION_INT, FIELD(stem_depth), "0", 0, STEM_MAX_DEPTH, NULL, "stem-depth",
     "blocks of a convolutional stem at twice the tokens' resolution, in place of the patch "
     "embedding; 0: none"},
    {"stem_width", OPTION_INT, FIELD(stem_width), "64", 1, 65536, NULL, "stem-width",
     "channels of the stem"},
    {"stages", OPTION_STRING, FIELD(stages), "", 0, 0, NULL, "stages",
     "WIDTHxBLOCKSxHEADS of each of the four stages of a hierarchical model, separated by commas; "
     "empty: a plain model"},
    {"rope", OPTION_BOOL, FIELD(rope), "false", 0, 0, NULL, "rope",
     "rotary positions of queries and keys, on in a hierarchical model unless set; the size of "
     "pictures is then fixed"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

typedef struct Preset {
    const char *name, *shorter;
    int64_t width, depth, heads; /* of a plain model */
    double drop_path;
    const char *stages;
} Preset;

static const Preset presets[] = {
    {"vittt_tiny", "vittt_t", 192, 12, 6, 0.0, ""},
    {"vittt_small", "vittt_s", 384, 12, 6, 0.1, ""},
    {"vittt_base", "vittt_b", 768, 12, 12, 0.4, ""},
    {"vittt_h_tiny", "vittt_h_t", 0, 0, 0, 0.2, "64x1x2,128x3x4,320x9x10,512x4x16"},
    {"vittt_h_small", "vittt_h_s", 0, 0, 0, 0.4, "64x2x2,128x6x4,320x18x10,512x8x16"},
    {"vittt_h_base", "vittt_h_b", 0, 0, 0, 0.6, "96x2x3,192x6x6,448x18x14,640x8x20"},
};
enum { PRESETS = sizeof presets / sizeof presets[0] };

const char *vittt_preset_name(int i) {
    return i >= 0 && i < PRESETS ? presets[i].name : NULL;
}

/* "ViTTT-Tiny" and "tiny" become "vittt_tiny"; "h_vittt_tiny" (the authors' order) and "h_tiny"
 * become "vittt_h_tiny"; false when the text is too long to be a name. */
static bool plain_name(const char *text, char *out, size_t size) {
    const char *const bare[] = {"t", "s", "b", "tiny", "small", "base"};
    char name[40];
    const size_t n = strlen(text);
    if (n >= sizeof name || size < sizeof name + sizeof "vittt_h_") return false;
    for (size_t i = 0; i <= n; i++)
        name[i] = text[i] == '-' ? '_' : (char)tolower((unsigned char)text[i]);
    const char *rest = name, *before = "";
    if (strncmp(name, "h_vittt_", 8) == 0) {
        rest = name + 8;
        before = "vittt_h_";
    } else if (strncmp(name, "h_", 2) == 0) {
        before = "vittt_";
    }
    for (size_t i = 0; i < sizeof bare / sizeof bare[0]; i++)
        if (strcmp(name, bare[i]) == 0) before = "vittt_";
    snprintf(out, size, "%s%s", before, rest);
    return true;
}

static Status unknown_preset(const char *given, const char *name) {
    const char *names[PRESETS + 1];
    for (int i = 0; i < PRESETS; i++) names[i] = presets[i].name;
    names[PRESETS] = "custom";
    const char *near = nearest_name(name, names, PRESETS + 1);
    if (near) {
        return status_set(STATUS_USAGE, "[model] preset '%.100s' is unknown; did you mean '%s'?",
                          given, near);
    }
    return status_set(STATUS_USAGE,
                      "[model] preset '%.100s' is unknown; there are vittt_tiny, vittt_small, "
                      "vittt_base, vittt_h_tiny, vittt_h_small, vittt_h_base and custom",
                      given);
}

/* What a hierarchical model cannot be, after the sizes that every model has. */
static Status check_stages(const VitttConfig *c) {
    HierStages s;
    SequenceSpec sequence;
    VitttVariant variant;
    TRY(hier_stages_parse(c->stages, &s));
    if (c->patch != HIER_REDUCTION || c->depth != hier_stages_depth(&s) ||
        c->width != s.width[HIER_STAGES - 1] || c->heads != s.heads[HIER_STAGES - 1])
        return status_set(STATUS_USAGE,
                          "[model] width %lld, depth %lld, heads %lld, patch %lld do not belong to "
                          "stages %.100s: a hierarchical model takes its sizes from them alone",
                          (long long)c->width, (long long)c->depth, (long long)c->heads,
                          (long long)c->patch, c->stages);
    if (c->stem_depth > 0)
        return status_set(STATUS_USAGE, "[model] stem_depth: a hierarchical model has a stem of "
                                        "its own");
    TRY(vittt_config_mixer(c, &sequence, &variant));
    if (sequence.kind == SEQUENCE_NONE) return STATUS_OK;
    return status_set(STATUS_USAGE,
                      "[model] mixer '%.100s' is not for hierarchical models, which have the ViTTT "
                      "mixer and its variants",
                      c->mixer);
}

/* Rotary positions: of pairs of channels, half of them for rows. */
static Status check_rope(const VitttConfig *c) {
    SequenceSpec sequence;
    VitttVariant variant;
    TRY(vittt_config_mixer(c, &sequence, &variant));
    if (sequence.kind == SEQUENCE_NONE && c->width % 4 == 0) return STATUS_OK;
    return status_set(STATUS_USAGE,
                      "[model] rope: only with the ViTTT mixer and its variants, and a width that "
                      "is a multiple of 4; mixer '%.100s', width %lld",
                      c->mixer, (long long)c->width);
}

Status vittt_config_check(const VitttConfig *c) {
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"image_size", c->image_size}, {"patch", c->patch}, {"width", c->width},
                 {"depth", c->depth},           {"heads", c->heads}, {"mlp_ratio", c->mlp_ratio},
                 {"classes", c->classes}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < 1)
            return status_set(STATUS_USAGE, "[model] %s is %lld, expected at least 1", sizes[i].key,
                              (long long)sizes[i].value);
    }
    if (c->image_size % c->patch != 0) {
        return status_set(
            STATUS_USAGE, "[model] image_size %lld is not a multiple of patch %lld; nearest: %lld",
            (long long)c->image_size, (long long)c->patch,
            (long long)(c->image_size / c->patch > 0 ? c->image_size / c->patch * c->patch
                                                     : c->patch));
    }
    if (c->stem_depth < 0 || c->stem_depth > STEM_MAX_DEPTH ||
        (c->stem_depth > 0 && (c->stem_width < 1 || c->patch % 2 != 0)))
        return status_set(
            STATUS_USAGE,
            "[model] stem_depth %lld, stem_width %lld, patch %lld: a stem has 1 to %d "
            "blocks, at least 1 channel, and an even patch",
            (long long)c->stem_depth, (long long)c->stem_width, (long long)c->patch,
            STEM_MAX_DEPTH);
    if (c->width % c->heads != 0)
        return status_set(STATUS_USAGE, "[model] width %lld is not a multiple of heads %lld",
                          (long long)c->width, (long long)c->heads);
    if (!(c->drop_path >= 0 && c->drop_path < 1))
        return status_set(STATUS_USAGE, "[model] drop_path is %g, expected 0 <= rate < 1",
                          c->drop_path);
    if (c->stages[0]) TRY(check_stages(c));
    if (c->rope) TRY(check_rope(c));
    if (c->form < VITTT_FUSED || c->form > VITTT_PAIRS)
        return status_set(STATUS_USAGE, "[model] form is %d, expected 0, 1 or 2", c->form);
    SequenceSpec sequence;
    VitttVariant variant;
    TRY(vittt_config_mixer(c, &sequence, &variant));
    if (sequence.kind != SEQUENCE_GRAPH) return STATUS_OK;
    Graph graph;
    const int64_t d = c->width / c->heads;
    return status_context(graph_parse(&graph, sequence.graph, d, 4 * d), "[model] mixer");
}

static Status graph_spec(const VitttConfig *c, SequenceSpec *s) {
    s->rule.steps = c->steps > 1 ? c->steps : 1;
    if (c->chunk > 0) s->rule.chunk = c->chunk;
    if (c->visibility > 0) s->rule.visibility = (GraphVisibility)(c->visibility - 1);
    if (c->scan > 0) s->rule.scan = (GraphScan)(c->scan - 1);
    if (c->loss > 0) s->rule.loss = (GraphLoss)(c->loss - 1);
    return status_context(graph_rule_check(&s->rule), "[model] mixer");
}

Status vittt_config_mixer(const VitttConfig *c, SequenceSpec *sequence, VitttVariant *variant) {
    *sequence = (SequenceSpec){0};
    *variant = (VitttVariant){0};
    const bool other = sequence_spec_by_name(c->mixer, sequence);
    if (other && sequence->kind == SEQUENCE_GRAPH) return graph_spec(c, sequence);
    if (c->chunk > 0 || c->visibility > 0 || c->scan > 0 || c->loss > 0)
        return status_set(
            STATUS_USAGE,
            "[model] chunk, visibility, scan and loss are of graph mixers (ttt_linear, "
            "ttt_mlp, graph:...), not of '%s'",
            c->mixer);
    if (other && c->steps > 1)
        return status_set(STATUS_USAGE, "[model] several inner steps: not with mixer '%s'",
                          c->mixer);
    if (other) return STATUS_OK;
    TRY(status_context(vittt_variant_by_name(c->mixer, variant), "[model]"));
    if (c->steps > 1 && c->form == VITTT_PAIRS)
        return status_set(STATUS_USAGE, "[model] several inner steps have no token-pair form");
    variant->steps = c->steps;
    return STATUS_OK;
}

static bool is_set(const Config *source, const char *key) {
    return source && config_is_set(source, "model", key);
}

typedef struct Size {
    const char *key;
    int64_t *field, value;
} Size;

/* Fills the sizes that nobody set. */
static void fill_sizes(const Size *size, int count, const Config *source) {
    for (int i = 0; i < count; i++)
        if (!is_set(source, size[i].key)) *size[i].field = size[i].value;
}

static Status fill_preset(VitttConfig *c, const Preset *p, const Config *source) {
    const Size plain[] = {{"width", &c->width, p->width},
                          {"depth", &c->depth, p->depth},
                          {"heads", &c->heads, p->heads},
                          {"mlp_ratio", &c->mlp_ratio, 4},
                          {"patch", &c->patch, 16}};
    if (!is_set(source, "stages")) snprintf(c->stages, sizeof c->stages, "%s", p->stages);
    if (!is_set(source, "drop_path")) c->drop_path = p->drop_path;
    if (!p->stages[0]) {
        fill_sizes(plain, 5, source);
        if (!c->stages[0]) return STATUS_OK;
        return status_set(STATUS_USAGE,
                          "[model] stages: %s is a plain model; stages go with the hierarchical "
                          "ones and with custom",
                          p->name);
    }
    if (!is_set(source, "mlp_ratio")) c->mlp_ratio = 4;
    if (c->stages[0]) return STATUS_OK;
    return status_set(STATUS_USAGE, "[model] stages: %s is a hierarchical model, it needs them",
                      p->name);
}

/* The sizes that follow from the stages. */
static Status fill_stages(VitttConfig *c, const Config *source) {
    HierStages s;
    TRY(hier_stages_parse(c->stages, &s));
    const Size sizes[] = {{"width", &c->width, s.width[HIER_STAGES - 1]},
                          {"depth", &c->depth, hier_stages_depth(&s)},
                          {"heads", &c->heads, s.heads[HIER_STAGES - 1]},
                          {"patch", &c->patch, HIER_REDUCTION}};
    fill_sizes(sizes, 4, source);
    if (source && !is_set(source, "rope")) c->rope = true;
    return STATUS_OK;
}

Status vittt_config_resolve(VitttConfig *c, const Config *source) {
    char name[64];
    if (!plain_name(c->preset, name, sizeof name)) return unknown_preset(c->preset, c->preset);
    const Preset *preset = NULL;
    for (int i = 0; i < PRESETS; i++) {
        if (strcmp(name, presets[i].name) == 0 || strcmp(name, presets[i].shorter) == 0)
            preset = &presets[i];
    }
    if (!preset && strcmp(name, "custom") != 0) return unknown_preset(c->preset, name);
    snprintf(c->preset, sizeof c->preset, "%s", preset ? preset->name : "custom");
    if (preset) TRY(fill_preset(c, preset, source));
    if (preset && preset->stages[0] && !source) c->rope = true;
    if (c->stages[0]) TRY(fill_stages(c, source));
    return vittt_config_check(c);
}

/* Products of one block on a map of n tokens, the depthwise inner gradient (9 n d elementwise ones)
 * not among them. */
static int64_t block_macs(int64_t w, int64_t heads, int64_t n, int64_t ratio, bool local) {
    const int64_t d = w / heads;
    const int64_t mixer = 3 * n * w * (w + d) + 6 * n * w * d + 9 * n * d + n * w * (w + d);
    return mixer + 2 * ratio * n * w * w + 9 * n * w + (local ? 9 * n * ratio * w : 0);
}

static int64_t stages_macs(const VitttConfig *c) {
    HierStages s;
    if (hier_stages_parse(c->stages, &s) != STATUS_OK) return 0;
    int64_t macs = hier_macs(&s, c->image_size) + c->width * c->classes;
    for (int i = 0; i < HIER_STAGES; i++) {
        const int64_t side = c->image_size / (HIER_REDUCTION >> (HIER_STAGES - 1 - i));
        macs += s.blocks[i] * block_macs(s.width[i], s.heads[i], side * side, c->mlp_ratio, true);
    }
    return macs;
}

/* Products of matrices and convolutions, as vittt.md 1 counts. */
int64_t vittt_macs(const VitttConfig *c) {
    if (vittt_is_hierarchical(c)) return stages_macs(c);
    const int64_t side = c->image_size / c->patch, n = side * side, w = c->width;
    const int64_t embedding = c->stem_depth > 0
                                  ? stem_macs(c->stem_depth, c->stem_width, w, c->patch, n)
                                  : 3 * c->patch * c->patch * n * w;
    return embedding + c->depth * block_macs(w, c->heads, n, c->mlp_ratio, false) + w * c->classes;
}
