/* Parsing policies, drawing operations, applying them. */
#include "datasets/policy.h"

#include <math.h>
#include <string.h>

#include "datasets/color.h"

/* Magnitudes are tenths of an operation's range. */
#define MAGNITUDES 10.0

enum { TRIVIAL_STEPS = 30 };

static const char *const op_names[OP_KINDS] = {
    "Identity", "AutoContrast", "Equalize",   "Invert",    "Rotate",     "Posterize",
    "Solarize", "SolarizeAdd",  "Color",      "Contrast",  "Brightness", "Sharpness",
    "ShearX",   "ShearY",       "TranslateX", "TranslateY"};

const char *policy_op_name(PolicyOpKind kind) {
    return op_names[kind];
}

/* ---- parsing ---- */

/* "9", "0.5": what a policy's text may hold; no sign, no exponent, whatever the locale. */
static bool take_number(const char **at, double *out) {
    const char *p = *at;
    double v = 0, unit = 1;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++) v = v * 10 + (*p - '0');
    if (*p == '.') {
        for (p++; *p >= '0' && *p <= '9'; p++) {
            v = v * 10 + (*p - '0');
            unit *= 10;
        }
    }
    *at = p;
    *out = v / unit;
    return *p == '\0' || *p == '-';
}

typedef struct Part {
    const char *name;
    double least, most;
    bool whole;
} Part;

enum { PART_MAGNITUDE, PART_SPREAD, PART_OPS, PART_INCREASING, PART_CHANCE, PARTS };

/* A name that begins like another stands before it. */
static const Part parts[PARTS] = {
    [PART_SPREAD] = {"mstd", 0, 10, false},      [PART_MAGNITUDE] = {"m", 0, 10, false},
    [PART_OPS] = {"n", 1, POLICY_MAX_OPS, true}, [PART_INCREASING] = {"inc", 0, 1, true},
    [PART_CHANCE] = {"p", 0, 1, false},
};

static Status bad_policy(const char *text, const char *what) {
    return status_set(
        STATUS_USAGE,
        "augmentation policy (aa) '%.80s': %s; there are none, trivial and rand-mM with M "
        "from 0 to 10 and, as wanted, -mstdS (0 to 10), -inc0 or -inc1, -nN (1 to %d "
        "operations), -pP (0 to 1): rand-m9-mstd0.5-inc1",
        text, what, POLICY_MAX_OPS);
}

/* Which part a word is and where its number begins. "mstd" is tried before "m". */
static int part_of(const char *word, const char **number) {
    static const int order[PARTS] = {PART_SPREAD, PART_MAGNITUDE, PART_OPS, PART_INCREASING,
                                     PART_CHANCE};
    for (int i = 0; i < PARTS; i++) {
        const size_t n = strlen(parts[order[i]].name);
        if (strncmp(word, parts[order[i]].name, n) != 0) continue;
        *number = word + n;
        return order[i];
    }
    return PARTS;
}

static Status parse_rand(const char *text, const char *at, Policy *out) {
    double value[PARTS] = {[PART_OPS] = 2, [PART_CHANCE] = 0.5};
    bool given[PARTS] = {false};
    while (*at == '-') {
        const char *number;
        const int part = part_of(at + 1, &number);
        double v;
        if (part == PARTS || !take_number(&number, &v)) return bad_policy(text, "unknown part");
        if (given[part]) return bad_policy(text, "a part stands there twice");
        if (v < parts[part].least || v > parts[part].most || (parts[part].whole && v != floor(v)))
            return bad_policy(text, "a number is out of range");
        given[part] = true;
        value[part] = v;
        at = number;
    }
    if (*at != '\0') return bad_policy(text, "unknown name");
    if (!given[PART_MAGNITUDE]) return bad_policy(text, "it has no magnitude");
    *out = (Policy){.kind = POLICY_RAND,
                    .magnitude = value[PART_MAGNITUDE],
                    .spread = value[PART_SPREAD],
                    .chance = value[PART_CHANCE],
                    .ops = (int)value[PART_OPS],
                    .increasing = value[PART_INCREASING] != 0};
    return STATUS_OK;
}

Status policy_parse(const char *text, Policy *out) {
    *out = (Policy){.kind = POLICY_NONE};
    if (text[0] == '\0' || strcmp(text, "none") == 0) return STATUS_OK;
    if (strcmp(text, "trivial") == 0) {
        out->kind = POLICY_TRIVIAL;
        return STATUS_OK;
    }
    if (strncmp(text, "rand", 4) != 0) return bad_policy(text, "unknown name");
    return parse_rand(text, text + 4, out);
}

/* ---- drawing ---- */

static double signed_value(double v, Rng *rng) {
    return rng_uniform(rng) > 0.5 ? -v : v;
}

/* 1 +- 0.9 level, or from 0.1 to 1.9. */
static double factor_of(const Policy *p, double level, Rng *rng) {
    if (!p->increasing) return level * 1.8 + 0.1;
    return fmax(0.1, 1.0 + signed_value(level * 0.9, rng));
}

/* vittt.md 7.4, the table; level is m / 10. */
static double rand_value(const Policy *p, PolicyOpKind kind, double level, int64_t side, Rng *rng) {
    const double bits = floor(level * 4), threshold = floor(level * 256);
    switch (kind) {
    case OP_ROTATE:
        return signed_value(level * 30, rng);
    case OP_POSTERIZE:
        return p->increasing ? 4 - bits : bits;
    case OP_SOLARIZE:
        return p->increasing ? 256 - threshold : threshold;
    case OP_SOLARIZE_ADD:
        return floor(level * 110);
    case OP_COLOR:
    case OP_CONTRAST:
    case OP_BRIGHTNESS:
    case OP_SHARPNESS:
        return factor_of(p, level, rng);
    case OP_SHEAR_X:
    case OP_SHEAR_Y:
        return signed_value(level * 0.3, rng);
    case OP_TRANSLATE_X:
    case OP_TRANSLATE_Y:
        return signed_value(level * 0.45, rng) * (double)side;
    default:
        return 0;
    }
}

static int draw_rand(const Policy *p, int64_t side, Rng *rng, PolicyOp ops[POLICY_MAX_OPS]) {
    int count = 0;
    for (int i = 0; i < p->ops; i++) {
        /* Every operation but the identity. */
        const PolicyOpKind kind = (PolicyOpKind)(1 + rng_below(rng, OP_KINDS - 1));
        if (rng_uniform(rng) >= p->chance) continue;
        double m = p->magnitude;
        if (p->spread > 0) m += p->spread * rng_normal(rng);
        m = m < 0 ? 0 : m > MAGNITUDES ? MAGNITUDES : m;
        ops[count++] = (PolicyOp){kind, rand_value(p, kind, m / MAGNITUDES, side, rng)};
    }
    return count;
}

/* The paper's wide ranges; shifts in pixels, whatever the picture. */
static double trivial_value(PolicyOpKind kind, int step, Rng *rng) {
    const double share = (double)step / TRIVIAL_STEPS;
    switch (kind) {
    case OP_ROTATE:
        return signed_value(135 * share, rng);
    case OP_POSTERIZE:
        return 8 - nearbyint(6 * share);
    case OP_SOLARIZE:
        return 255 - 255 * share;
    case OP_COLOR:
    case OP_CONTRAST:
    case OP_BRIGHTNESS:
    case OP_SHARPNESS:
        return 1 + signed_value(0.99 * share, rng);
    case OP_SHEAR_X:
    case OP_SHEAR_Y:
        return signed_value(0.99 * share, rng);
    case OP_TRANSLATE_X:
    case OP_TRANSLATE_Y:
        return signed_value(floor(32 * share), rng);
    default:
        return 0;
    }
}

static int draw_trivial(Rng *rng, PolicyOp ops[POLICY_MAX_OPS]) {
    static const PolicyOpKind kinds[] = {OP_IDENTITY,    OP_AUTO_CONTRAST, OP_EQUALIZE, OP_ROTATE,
                                         OP_POSTERIZE,   OP_SOLARIZE,      OP_COLOR,    OP_CONTRAST,
                                         OP_BRIGHTNESS,  OP_SHARPNESS,     OP_SHEAR_X,  OP_SHEAR_Y,
                                         OP_TRANSLATE_X, OP_TRANSLATE_Y};
    const PolicyOpKind kind = kinds[rng_below(rng, sizeof kinds / sizeof kinds[0])];
    const int step = (int)rng_below(rng, TRIVIAL_STEPS + 1);
    ops[0] = (PolicyOp){kind, trivial_value(kind, step, rng)};
    return kind == OP_IDENTITY ? 0 : 1;
}

int policy_draw(const Policy *p, int64_t side, Rng *rng, PolicyOp ops[POLICY_MAX_OPS]) {
    if (p->kind == POLICY_RAND) return draw_rand(p, side, rng, ops);
    return p->kind == POLICY_TRIVIAL ? draw_trivial(rng, ops) : 0;
}

/* ---- applying ---- */

size_t policy_work_bytes(int64_t side) {
    return affine_work_bytes(side, side); /* more than color_sharpness takes */
}

static void move(const Affine *a, uint8_t *rgb, int64_t side, const PolicyStyle *s, void *work) {
    affine_apply(rgb, side, side, a, s->filter, s->fill, work);
}

static void apply_move(const PolicyOp *op, uint8_t *rgb, int64_t side, const PolicyStyle *s,
                       void *work) {
    const double v = op->value;
    Affine a = {{1, 0, 0, 0, 1, 0}};
    if (op->kind == OP_ROTATE) a = affine_rotation(v, side, side);
    if (op->kind == OP_SHEAR_X) a = affine_shear(v, 0);
    if (op->kind == OP_SHEAR_Y) a = affine_shear(0, v);
    if (op->kind == OP_TRANSLATE_X) a = affine_translation(v, 0);
    if (op->kind == OP_TRANSLATE_Y) a = affine_translation(0, v);
    move(&a, rgb, side, s, work);
}

void policy_apply(const PolicyOp *op, uint8_t *rgb, int64_t side, const PolicyStyle *style,
                  void *work) {
    const int64_t pixels = side * side;
    const float factor = (float)op->value;
    switch (op->kind) {
    case OP_AUTO_CONTRAST:
        color_autocontrast(rgb, pixels);
        break;
    case OP_EQUALIZE:
        color_equalize(rgb, pixels);
        break;
    case OP_INVERT:
        color_invert(rgb, pixels);
        break;
    case OP_POSTERIZE:
        color_posterize(rgb, pixels, (int)op->value);
        break;
    case OP_SOLARIZE:
        color_solarize(rgb, pixels, op->value);
        break;
    case OP_SOLARIZE_ADD:
        color_solarize_add(rgb, pixels, (int)op->value);
        break;
    case OP_COLOR:
        color_saturation(rgb, pixels, factor);
        break;
    case OP_CONTRAST:
        color_contrast(rgb, pixels, factor);
        break;
    case OP_BRIGHTNESS:
        color_brightness(rgb, pixels, factor);
        break;
    case OP_SHARPNESS:
        color_sharpness(rgb, side, side, factor, work);
        break;
    case OP_IDENTITY:
    case OP_KINDS:
        break;
    default:
        apply_move(op, rgb, side, style, work);
        break;
    }
}
