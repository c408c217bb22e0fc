/* Evaluation by an index: which views of which scene, and what became of each entry. */
#include <math.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/crc32c.h"
#include "core/file.h"
#include "core/json.h"
#include "core/json_scan.h"
#include "core/memory.h"
#include "core/rng.h"
#include "datasets/view_sample.h"

enum { MAX_INDEX_BYTES = 256 << 20, SHOWN = 200, PLACE = 640 };

const char *eval_state_name(EvalState s) {
    static const char *const names[] = {"ready", "null", "missing", "faulty", "failed"};
    return names[s];
}

void eval_index_free(EvalIndex *x) {
    for (int64_t i = 0; i < x->count; i++) {
        mem_free(x->entries[i].scene);
        mem_free(x->entries[i].reason);
    }
    mem_free(x->entries);
    mem_free(x->name);
    *x = (EvalIndex){0};
}

static Status new_entries(EvalIndex *x, int64_t count) {
    void *block;
    *x = (EvalIndex){0};
    TRY(mem_alloc(&block, count, sizeof(EvalEntry), "evaluation index"));
    x->entries = block;
    return STATUS_OK;
}

static Status set_reason(EvalEntry *e, EvalState state, const char *reason) {
    mem_free(e->reason);
    e->reason = NULL;
    e->state = state;
    return mem_string(&e->reason, reason);
}

Status eval_entry_failed(EvalEntry *e) {
    char text[1024];
    snprintf(text, sizeof text, "%s", status_message());
    return set_reason(e, EVAL_FAILED, text);
}

/* ---- reading ---- */

/* Appends the frame numbers of a list to the sample; their number in *count. */
static Status take_frames(const cJSON *list, const char *name, const char *scene, const char *key,
                          ViewSample *sample, int *count) {
    char shown[SHOWN];
    text_printable(scene, shown, sizeof shown);
    if (!cJSON_IsArray(list) || list->child == NULL)
        return status_set(STATUS_DATA, "%s: scene '%s': a list '%s' of frame numbers is expected",
                          name, shown, key);
    int used = sample->inputs + sample->targets, n = 0;
    for (const cJSON *at = list->child; at != NULL; at = at->next, n++) {
        double value = cJSON_IsNumber(at) ? at->valuedouble : -1;
        if (value < 0 || value != floor(value) || value > 1e9)
            return status_set(STATUS_DATA,
                              "%s: scene '%s': '%s' holds something that is no frame "
                              "number (position %d)",
                              name, shown, key, n);
        if (used + n == VIEW_MAX)
            return status_set(STATUS_DATA, "%s: scene '%s': more than %d views", name, shown,
                              VIEW_MAX);
        sample->frames[used + n] = (int64_t)value;
    }
    *count = n;
    return STATUS_OK;
}

static Status read_entry(const cJSON *item, const char *file, EvalEntry *e) {
    char shown[SHOWN], name[PLACE];
    int n = snprintf(name, sizeof name, "%s", file);
    if (e->line > 0 && n < PLACE)
        snprintf(name + n, sizeof name - (size_t)n, ":%lld", (long long)e->line);
    TRY(mem_string(&e->scene, item->string));
    e->sample.scene = -1;
    if (cJSON_IsNull(item)) {
        e->state = EVAL_NULL;
        return STATUS_OK;
    }
    if (!cJSON_IsObject(item))
        return status_set(STATUS_DATA, "%s: scene '%s': null or an object is expected", name,
                          text_printable(item->string, shown, sizeof shown));
    TRY(take_frames(cJSON_GetObjectItemCaseSensitive(item, "context"), name, item->string,
                    "context", &e->sample, &e->sample.inputs));
    return take_frames(cJSON_GetObjectItemCaseSensitive(item, "target"), name, item->string,
                       "target", &e->sample, &e->sample.targets);
}

/* The line of each scene's key: the tree of cJSON has no places. Of a file that is one line, like
 * the published index, they say nothing: 0. */
static void find_lines(const char *text, size_t size, EvalIndex *x) {
    JsonCursor c = {text, text + size};
    const char *counted = text;
    int64_t line = 1;
    json_enter(&c);
    for (int64_t i = 0; i < x->count && json_more(&c); i++) {
        for (json_peek(&c); counted < c.at; counted++) line += *counted == '\n';
        x->entries[i].line = line;
        json_skip_key(&c);
        json_skip(&c);
    }
    for (int64_t i = 0; i < x->count && line == 1; i++) x->entries[i].line = 0;
}

static Status read_entries(const cJSON *root, const char *text, size_t size, const char *name,
                           EvalIndex *out) {
    if (!cJSON_IsObject(root))
        return status_set(STATUS_DATA, "%s: an object of scenes is expected", name);
    int64_t count = 0;
    for (const cJSON *at = root->child; at != NULL; at = at->next) count++;
    if (count == 0) return status_set(STATUS_DATA, "%s: no scenes in it", name);
    TRY(new_entries(out, count));
    TRY(mem_string(&out->name, name));
    out->count = count;
    find_lines(text, size, out);
    EvalEntry *e = out->entries;
    for (const cJSON *at = root->child; at != NULL; at = at->next) TRY(read_entry(at, name, e++));
    return STATUS_OK;
}

Status eval_index_parse(const char *text, size_t size, const char *name, EvalIndex *out) {
    cJSON *root;
    *out = (EvalIndex){0};
    TRY(json_parse(text, size, name, &root));
    Status s = read_entries(root, text, size, name, out);
    json_free(root);
    if (s != STATUS_OK) eval_index_free(out);
    return s;
}

Status eval_index_read(const char *path, EvalIndex *out) {
    char *text, shown[600];
    size_t size;
    *out = (EvalIndex){0};
    TRY(file_read(path, MAX_INDEX_BYTES, &text, &size));
    Status s = eval_index_parse(text, size, text_printable(path, shown, sizeof shown), out);
    mem_free(text);
    return s;
}

/* ---- writing ---- */

static void write_frames(JsonWriter *w, const char *key, const int64_t *frames, int count) {
    json_key(w, key);
    json_begin_array(w);
    for (int i = 0; i < count; i++) json_int(w, frames[i]);
    json_end_array(w);
}

Status eval_index_write(const EvalIndex *x, const char *path) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    for (int64_t i = 0; i < x->count; i++) {
        const EvalEntry *e = &x->entries[i];
        json_key(&w, e->scene);
        if (e->sample.inputs == 0) {
            json_null(&w);
            continue;
        }
        json_begin_object(&w);
        write_frames(&w, "context", e->sample.frames, e->sample.inputs);
        write_frames(&w, "target", e->sample.frames + e->sample.inputs, e->sample.targets);
        json_end_object(&w);
    }
    json_end_object(&w);
    Status s = w.status;
    if (s == STATUS_OK) s = file_write_atomic(path, w.text, w.length);
    json_writer_free(&w);
    return s;
}

/* ---- generating ---- */

enum { DRAWS = 100 }; /* of a scene whose cameras turn */

/* Frames that have pictures, in order. */
static int64_t list_present(const Scene *s, int64_t *list) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->count; i++)
        if (s->frames[i].image >= 0) list[count++] = i;
    return count;
}

/* Inputs spread over a window of the pictures; targets strictly between first and last, one from
 * each of as many equal parts, so that they are spread too. */
static bool choose_views(const ViewRecipe *r, const Scene *s, Rng *rng, const int64_t *list,
                         int64_t count, ViewSample *out) {
    int64_t low = r->gap_min, high = r->gap_max, least = r->targets + 1;
    if (least < r->inputs - 1) least = r->inputs - 1;
    if (high > count - 1) high = count - 1;
    if (low > high) low = high;
    if (low < least) low = least;
    if (high < low) high = low;
    if (high > count - 1) return false;
    int64_t gap = low + (int64_t)rng_below(rng, (uint64_t)(high - low + 1));
    const int64_t *from = list + rng_below(rng, (uint64_t)(count - gap));
    if (r->turn_max > 0 && view_turn(&s->frames[from[0]], &s->frames[from[gap]]) > r->turn_max)
        return false;
    for (int64_t i = 0; i < r->inputs; i++) out->frames[i] = from[i * gap / (r->inputs - 1)];
    for (int64_t i = 0; i < r->targets; i++) {
        int64_t a = 1 + i * (gap - 1) / r->targets, b = 1 + (i + 1) * (gap - 1) / r->targets;
        out->frames[r->inputs + i] = from[a + (int64_t)rng_below(rng, (uint64_t)(b - a))];
    }
    out->inputs = (int)r->inputs;
    out->targets = (int)r->targets;
    return true;
}

static Status generate_entry(const Scene *s, const ViewRecipe *r, uint64_t seed, EvalEntry *e) {
    char reason[1024];
    void *list;
    TRY(mem_string(&e->scene, s->name));
    e->sample.scene = -1;
    if (!scene_usable(s)) return set_reason(e, EVAL_NULL, scene_reason(s, reason, sizeof reason));
    TRY(mem_alloc(&list, s->count, sizeof(int64_t), "frames to choose from"));
    Rng rng = rng_stream(seed, RNG_VIEWS, UINT32_MAX, crc32c(0, s->name, strlen(s->name)));
    const int64_t count = list_present(s, list);
    bool chosen = choose_views(r, s, &rng, list, count, &e->sample);
    for (int i = 0; i < DRAWS && r->turn_max > 0 && !chosen; i++)
        chosen = choose_views(r, s, &rng, list, count, &e->sample);
    mem_free(list);
    if (chosen) return STATUS_OK;
    snprintf(reason, sizeof reason, "%s: too short%s: %lld pictures", s->camera_file,
             r->turn_max > 0 ? ", or turning too fast" : "", (long long)(s->count - s->missing));
    return set_reason(e, EVAL_NULL, reason);
}

Status eval_index_generate(const SceneSet *set, const ViewRecipe *r, uint64_t seed,
                           EvalIndex *out) {
    *out = (EvalIndex){0};
    TRY(view_recipe_check(r));
    TRY(new_entries(out, scene_set_count(set)));
    for (int64_t i = 0; i < scene_set_count(set); i++) {
        out->count++;
        Status s = generate_entry(scene_set_at(set, i), r, seed, &out->entries[i]);
        if (s == STATUS_OK) continue;
        eval_index_free(out);
        return s;
    }
    return STATUS_OK;
}

/* ---- looking up ---- */

/* A fault of the index, with its place in the file. */
static Status set_missing(const EvalIndex *x, EvalEntry *e, const char *what) {
    char text[1024 + PLACE];
    if (e->line == 0) return set_reason(e, EVAL_MISSING, what);
    snprintf(text, sizeof text, "%s (%s:%lld)", what, x->name, (long long)e->line);
    return set_reason(e, EVAL_MISSING, text);
}

static Status resolve_entry(const EvalIndex *x, EvalEntry *e, const SceneSet *set) {
    char text[1024];
    if (e->state == EVAL_NULL) return STATUS_OK;
    e->sample.scene = scene_set_find(set, e->scene);
    if (e->sample.scene < 0) return set_missing(x, e, "the scene is not in the data");
    const Scene *s = scene_set_at(set, e->sample.scene);
    if (s->fault_count > 0) return set_reason(e, EVAL_FAULTY, scene_reason(s, text, sizeof text));
    for (int v = 0; v < e->sample.inputs + e->sample.targets; v++) {
        int64_t frame = e->sample.frames[v];
        if (frame >= s->count) {
            snprintf(text, sizeof text, "%s: no frame %lld: %lld cameras", s->camera_file,
                     (long long)frame, (long long)s->count);
            return set_missing(x, e, text);
        }
        if (s->frames[frame].image >= 0) continue;
        snprintf(text, sizeof text, "%s:%lld: frame %lld has no picture", s->camera_file,
                 (long long)s->frames[frame].line, (long long)frame);
        return set_missing(x, e, text);
    }
    e->state = EVAL_READY;
    mem_free(e->reason);
    e->reason = NULL;
    return STATUS_OK;
}

Status eval_index_resolve(EvalIndex *x, const SceneSet *set) {
    for (int64_t i = 0; i < x->count; i++) TRY(resolve_entry(x, &x->entries[i], set));
    return STATUS_OK;
}

EvalCounts eval_index_counts(const EvalIndex *x) {
    EvalCounts c = {0};
    int64_t *const of[] = {&c.ready, &c.null, &c.missing, &c.faulty, &c.failed};
    for (int64_t i = 0; i < x->count; i++) ++*of[x->entries[i].state];
    return c;
}
