/* Training samples (lact_nvs.md 7): a gap, a start, targets in between. */
#include "datasets/view_sample.h"

#include <math.h>

#include "core/memory.h"
#include "core/rng.h"

/* Draws of one sample before the scene is given up: gaps may not fit, pictures may be missing. */
enum { DRAWS = 200, SAME_SCENE = 8 };

/* Scenes that are drawn alike. */
typedef struct Group {
    int64_t *usable; /* scenes that can serve */
    int64_t *order;  /* a permutation of them, for one epoch */
    int64_t count, epoch;
    uint64_t stream;
} Group;

struct ViewSampler {
    const SceneSet *set;
    ViewRecipe recipe;
    uint64_t seed;
    Group groups[2]; /* all or the real ones; the synthetic ones, when they have a share */
    int64_t synthetic, unusable, brief;
};

ViewRecipe view_recipe_re10k(void) {
    return (ViewRecipe){.gap_min = 25, .gap_max = 192, .inputs = 2, .targets = 6};
}

double view_turn(const SceneFrame *a, const SceneFrame *b) {
    double trace = 0; /* of Ra' Rb: 1 + 2 cos(turn) */
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < 3; k++) trace += a->w2c[4 * r + k] * b->w2c[4 * r + k];
    return acos(fmin(1, fmax(-1, (trace - 1) / 2))) * 180 / acos(-1);
}

Status view_recipe_check(const ViewRecipe *r) {
    if (r->inputs < 2 || r->targets < 1 || r->inputs + r->targets > VIEW_MAX)
        return status_set(STATUS_USAGE,
                          "%lld inputs and %lld targets: at least 2 and 1, together at most %d",
                          (long long)r->inputs, (long long)r->targets, VIEW_MAX);
    if (r->gap_min < 1 || r->gap_max < r->gap_min)
        return status_set(STATUS_USAGE, "gaps from %lld to %lld: 1 <= min <= max is expected",
                          (long long)r->gap_min, (long long)r->gap_max);
    if (!(r->turn_max >= 0 && r->turn_max <= 180))
        return status_set(STATUS_USAGE, "turns of at most %g degrees: 0 to 180 is expected",
                          r->turn_max);
    if (!(r->tint >= 0 && r->tint <= 1))
        return status_set(STATUS_USAGE, "tint %g: 0 to 1 is expected", r->tint);
    if (!(r->mirror >= 0 && r->mirror <= 1) || !(r->synthetic >= 0 && r->synthetic <= 1))
        return status_set(STATUS_USAGE, "mirrored %g, synthetic %g: shares of 0 to 1 are expected",
                          r->mirror, r->synthetic);
    return STATUS_OK;
}

/* Views that a gap must offer as targets, and as inputs. */
static int64_t least_gap(const ViewRecipe *r) {
    int64_t targets = r->inside ? r->targets + 1 : r->targets - 1;
    return targets > r->inputs - 1 ? targets : r->inputs - 1;
}

static bool is_long_enough(const ViewRecipe *r, const Scene *s) {
    int64_t last = s->count - 1, least = least_gap(r);
    if (s->count - s->missing < least + 1) return false;
    return r->clamp ? last >= least : last >= r->gap_min && last >= least;
}

static void sort_scenes(ViewSampler *s) {
    for (int64_t i = 0; i < scene_set_count(s->set); i++) {
        const Scene *scene = scene_set_at(s->set, i);
        const bool synthetic = scene_synthetic(scene);
        Group *g = &s->groups[s->recipe.synthetic > 0 && synthetic];
        if (!scene_usable(scene)) {
            s->unusable++;
        } else if (!is_long_enough(&s->recipe, scene)) {
            s->brief++;
        } else {
            g->usable[g->count++] = i;
            s->synthetic += synthetic;
        }
    }
}

/* Whether both kinds that the recipe asks for are there. */
static Status check_kinds(const ViewSampler *s) {
    const ViewRecipe *r = &s->recipe;
    const int64_t scenes = view_sampler_scenes(s);
    if (scenes == 0)
        return status_set(STATUS_DATA,
                          "none of %lld scenes can serve gaps of %lld to %lld frames: %lld are "
                          "unusable, %lld too short",
                          (long long)scene_set_count(s->set), (long long)r->gap_min,
                          (long long)r->gap_max, (long long)s->unusable, (long long)s->brief);
    if (r->synthetic > 0 && (s->synthetic == 0 || (s->synthetic == scenes && r->synthetic < 1)))
        return status_set(
            STATUS_DATA, "%g of the samples shall be synthetic, but %lld of %lld usable scenes are",
            r->synthetic, (long long)s->synthetic, (long long)scenes);
    return STATUS_OK;
}

Status view_sampler_open(const SceneSet *set, const ViewRecipe *r, uint64_t seed,
                         ViewSampler **out) {
    void *block, *list;
    *out = NULL;
    TRY(view_recipe_check(r));
    const int64_t scenes = scene_set_count(set);
    TRY(mem_alloc(&block, 1, sizeof(ViewSampler), "sampler of views"));
    Status status = mem_alloc(&list, 4 * scenes, sizeof(int64_t), "order of scenes");
    if (status != STATUS_OK) {
        mem_free(block);
        return status;
    }
    ViewSampler *s = block;
    *s = (ViewSampler){.set = set, .recipe = *r, .seed = seed};
    for (int i = 0; i < 2; i++) {
        int64_t *part = (int64_t *)list + 2 * i * scenes;
        s->groups[i] =
            (Group){.usable = part, .order = part + scenes, .epoch = -1, .stream = (uint64_t)i};
    }
    sort_scenes(s);
    status = check_kinds(s);
    if (status == STATUS_OK)
        *out = s;
    else
        view_sampler_close(s);
    return status;
}

void view_sampler_close(ViewSampler *s) {
    if (s == NULL) return;
    mem_free(s->groups[0].usable);
    mem_free(s);
}

int64_t view_sampler_scenes(const ViewSampler *s) {
    return s->groups[0].count + s->groups[1].count;
}

int64_t view_sampler_synthetic(const ViewSampler *s) {
    return s->synthetic;
}

int64_t view_sampler_unusable(const ViewSampler *s) {
    return s->unusable;
}

int64_t view_sampler_short(const ViewSampler *s) {
    return s->brief;
}

/* Frames of [start, end] with a picture, into list; their number. */
static int64_t present(const Scene *s, int64_t start, int64_t end, int64_t *list) {
    int64_t count = 0;
    for (int64_t i = start; i <= end; i++)
        if (s->frames[i].image >= 0) list[count++] = i;
    return count;
}

/* `targets` of the list without replacement: the front of a partial Fisher-Yates shuffle. */
static void choose_targets(Rng *rng, int64_t *list, int64_t count, int64_t targets, int64_t *out) {
    for (int64_t i = 0; i < targets; i++) {
        int64_t k = i + (int64_t)rng_below(rng, (uint64_t)(count - i));
        out[i] = list[k];
        list[k] = list[i];
    }
}

/* Inputs spread evenly over the list, first and last included. */
static void choose_inputs(const int64_t *list, int64_t count, int64_t inputs, int64_t *out) {
    for (int64_t i = 0; i < inputs; i++) out[i] = list[i * (count - 1) / (inputs - 1)];
}

/* One gap and start; false when they do not fit the scene or its pictures. */
static bool draw_views(const ViewRecipe *r, const Scene *s, Rng *rng, int64_t *list,
                       ViewSample *out) {
    int64_t low = r->gap_min, high = r->gap_max, last = s->count - 1;
    if (r->clamp) {
        if (high > last) high = last;
        if (low > high) low = high;
        if (low < least_gap(r)) low = least_gap(r);
        if (high < low) high = low;
    }
    int64_t gap = low + (int64_t)rng_below(rng, (uint64_t)(high - low + 1));
    if (gap > last) return false;
    int64_t start = (int64_t)rng_below(rng, (uint64_t)(last - gap + 1));
    if (s->frames[start].image < 0 || s->frames[start + gap].image < 0) return false;
    if (r->turn_max > 0 && view_turn(&s->frames[start], &s->frames[start + gap]) > r->turn_max)
        return false;
    int64_t count = present(s, start, start + gap, list), skip = r->inside ? 1 : 0;
    if (count < r->inputs || count - 2 * skip < r->targets) return false;
    choose_inputs(list, count, r->inputs, out->frames);
    choose_targets(rng, list + skip, count - 2 * skip, r->targets, out->frames + r->inputs);
    out->inputs = (int)r->inputs;
    out->targets = (int)r->targets;
    return true;
}

static Status draw_scene(const ViewSampler *s, int64_t scene, Rng *rng, ViewSample *out,
                         bool *drawn) {
    const Scene *one = scene_set_at(s->set, scene);
    void *list;
    TRY(mem_alloc(&list, one->count, sizeof(int64_t), "frames to choose from"));
    const int draws = s->recipe.turn_max > 0 ? SAME_SCENE : 1;
    for (int i = 0; i < draws && !*drawn; i++) *drawn = draw_views(&s->recipe, one, rng, list, out);
    out->scene = scene;
    mem_free(list);
    return STATUS_OK;
}

static float draw_factor(Rng *rng, double width) {
    return (float)exp(width * (2 * rng_uniform(rng) - 1));
}

static void draw_variation(const ViewRecipe *r, Rng *rng, ViewSample *out) {
    out->mirror = r->mirror > 0 && rng_uniform(rng) < r->mirror;
    out->crop = r->crop ? (int8_t)((int64_t)rng_below(rng, VIEW_CROPS) - VIEW_CROPS / 2) : 0;
    for (int i = 0; i < 4; i++) out->tint[i] = r->tint > 0 ? draw_factor(rng, r->tint) : 0;
}

/* Sample n is number *k of its group: synthetic ones are spread evenly among the others. */
static Group *group_of(ViewSampler *s, int64_t n, int64_t *k) {
    const double share = s->recipe.synthetic;
    const int64_t before = (int64_t)floor((double)n * share);
    const bool synthetic = (int64_t)floor((double)(n + 1) * share) > before;
    *k = share <= 0 ? n : synthetic ? before : n - before;
    return &s->groups[share > 0 && synthetic];
}

/* The scene whose turn it is, unless it does not fit what was drawn; then any other of its kind. */
Status view_sampler_draw(ViewSampler *s, int64_t n, int attempt, ViewSample *out) {
    int64_t k;
    Group *g = group_of(s, n, &k);
    const int64_t epoch = k / g->count;
    bool drawn = false;
    if (epoch != g->epoch) {
        Rng shuffle = rng_stream(s->seed, RNG_SHUFFLE, (uint64_t)epoch, g->stream);
        rng_permutation(&shuffle, g->order, g->count);
        g->epoch = epoch;
    }
    Rng rng = rng_stream(s->seed, RNG_VIEWS, (uint64_t)attempt, (uint64_t)n);
    int64_t turn = g->order[k % g->count];
    if (attempt > 0) turn = (int64_t)rng_below(&rng, (uint64_t)g->count);
    for (int i = 0; i < DRAWS && !drawn; i++) {
        TRY(draw_scene(s, g->usable[turn], &rng, out, &drawn));
        turn = (int64_t)rng_below(&rng, (uint64_t)g->count);
    }
    if (drawn) draw_variation(&s->recipe, &rng, out);
    if (drawn) return STATUS_OK;
    return status_set(STATUS_DATA,
                      "no views for sample %lld after %d draws: too many pictures are missing",
                      (long long)n, DRAWS);
}
