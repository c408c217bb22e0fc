#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "core/crc32c.h"
#include "core/file.h"
#include "core/json.h"
#include "core/json_scan.h"
#include "core/log.h"
#include "core/memory.h"
#include "nn/checkpoint_files.h"

#define MANIFEST_BYTES 65536
#define FOLDER         "checkpoints/"

/* <run_folder>/<name><suffix> */
static Status file_path(const char *run_folder, const char *name, const char *suffix, char **out) {
    char text[CHECKPOINT_NAME + 32];
    snprintf(text, sizeof text, "%s%s", name, suffix);
    return path_join(out, run_folder, text);
}

Status manifest_exists(const char *run_folder, const char *which, bool *exists) {
    char *path;
    TRY(file_path(run_folder, which, ".json", &path));
    *exists = file_exists(path);
    mem_free(path);
    return STATUS_OK;
}

/* ---- reading ---------------------------------------------------------------------------- */

/* A plain file inside checkpoints/: a hostile manifest must not lead anywhere else. */
static bool name_is_local(const char *name) {
    size_t prefix = sizeof FOLDER - 1;
    return strncmp(name, FOLDER, prefix) == 0 && name[prefix] != '\0' && name[prefix] != '.' &&
           !strchr(name + prefix, '/');
}

static bool take_name(JsonCursor *c, char *out) {
    if (json_peek(c) != '"' || json_string_span(c) > CHECKPOINT_NAME) {
        json_skip(c);
        return false;
    }
    size_t length = json_take_string(c, out);
    return length == strlen(out) && name_is_local(out);
}

static double take_number(JsonCursor *c) {
    char first = json_peek(c);
    double value = first == '-' || (first >= '0' && first <= '9') ? strtod(c->at, NULL) : NAN;
    json_skip(c);
    return value;
}

/* One key of the manifest's object; false when its value cannot be meant. */
static bool take_pair(JsonCursor *c, const char *key, Manifest *m, unsigned *seen) {
    const struct {
        const char *key;
        int64_t *value;
    } integers[] = {
        {"step", &m->step},
        {"epoch", &m->epoch},
        {"weights_bytes", &m->weights_bytes},
        {"weights_crc32c", &m->weights_crc32c},
        {"state_bytes", &m->state_bytes},
        {"state_crc32c", &m->state_crc32c},
        {"ema_bytes", &m->ema_bytes},
        {"ema_crc32c", &m->ema_crc32c},
    };
    for (unsigned i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        if (strcmp(key, integers[i].key) != 0) continue;
        *seen |= 1u << i;
        return json_take_int(c, integers[i].value) && *integers[i].value >= 0;
    }
    const struct {
        const char *key;
        char *name;
    } names[] = {{"weights", m->weights}, {"state", m->state}, {"ema", m->ema}};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(key, names[i].key) != 0) continue;
        *seen |= 1u << (8 + i);
        return take_name(c, names[i].name);
    }
    if (strcmp(key, "metric") == 0)
        m->metric = take_number(c);
    else
        json_skip(c); /* written by a newer version */
    return true;
}

static Status parse(const char *text, size_t size, const char *path, Manifest *m) {
    TRY(json_check(text, size, path));
    JsonCursor c = {text, text + size};
    unsigned seen = 0;
    if (json_peek(&c) != '{') return status_set(STATUS_DATA, "%s: expected a JSON object", path);
    json_enter(&c);
    while (json_more(&c)) {
        char key[64];
        if (json_string_span(&c) > sizeof key)
            return status_set(STATUS_DATA, "%s: a key is too long", path);
        json_take_string(&c, key);
        if (!take_pair(&c, key, m, &seen))
            return status_set(STATUS_DATA, "%s: bad value of '%s'", path, key);
    }
    const unsigned needed = 0x33f, ema = 0x4c0; /* bits in the order of take_pair() */
    m->has_ema = (seen & ema) != 0;
    if (seen != (m->has_ema ? needed | ema : needed))
        return status_set(STATUS_DATA,
                          "%s: expected step, epoch, weights, state and their _bytes and _crc32c",
                          path);
    return STATUS_OK;
}

Status manifest_read(const char *run_folder, const char *which, Manifest *m) {
    char *path, *text = NULL;
    size_t size;
    memset(m, 0, sizeof *m);
    m->metric = NAN;
    TRY(file_path(run_folder, which, ".json", &path));
    Status s = file_read(path, MANIFEST_BYTES, &text, &size);
    if (s == STATUS_OK) s = parse(text, size, path, m);
    mem_free(text);
    mem_free(path);
    return s;
}

/* ---- sizes and checksums ---------------------------------------------------------------- */

static Status measure(const char *run_folder, const char *name, int64_t *bytes, int64_t *crc) {
    char *path;
    FileMap map;
    TRY(path_join(&path, run_folder, name));
    Status s = file_map(path, &map);
    mem_free(path);
    TRY(s);
    *bytes = (int64_t)map.size;
    *crc = (int64_t)crc32c(0, map.data, map.size);
    file_unmap(&map);
    return STATUS_OK;
}

Status manifest_measure(const char *run_folder, Manifest *m) {
    TRY(measure(run_folder, m->weights, &m->weights_bytes, &m->weights_crc32c));
    TRY(measure(run_folder, m->state, &m->state_bytes, &m->state_crc32c));
    if (!m->has_ema) return STATUS_OK;
    return measure(run_folder, m->ema, &m->ema_bytes, &m->ema_crc32c);
}

static Status check(const char *run_folder, const char *name, int64_t bytes, int64_t crc) {
    int64_t found_bytes, found_crc;
    TRY(measure(run_folder, name, &found_bytes, &found_crc));
    if (found_bytes != bytes)
        return status_set(STATUS_DATA, "%s/%s: %" PRId64 " bytes, but the manifest says %" PRId64,
                          run_folder, name, found_bytes, bytes);
    if (found_crc != crc)
        return status_set(STATUS_DATA,
                          "%s/%s: damaged: its CRC-32C is %08" PRIx64
                          ", but the manifest says %08" PRIx64,
                          run_folder, name, found_crc, crc);
    return STATUS_OK;
}

Status manifest_check(const char *run_folder, const Manifest *m) {
    TRY(check(run_folder, m->weights, m->weights_bytes, m->weights_crc32c));
    TRY(check(run_folder, m->state, m->state_bytes, m->state_crc32c));
    return m->has_ema ? check(run_folder, m->ema, m->ema_bytes, m->ema_crc32c) : STATUS_OK;
}

/* ---- writing ---------------------------------------------------------------------------- */

static Status format(const Manifest *m, JsonWriter *w) {
    json_writer_init(w);
    json_begin_object(w);
    json_pair_int(w, "format", 1);
    json_pair_int(w, "step", m->step);
    json_pair_int(w, "epoch", m->epoch);
    json_pair_number(w, "metric", m->metric);
    json_pair_string(w, "weights", m->weights);
    json_pair_int(w, "weights_bytes", m->weights_bytes);
    json_pair_int(w, "weights_crc32c", m->weights_crc32c);
    json_pair_string(w, "state", m->state);
    json_pair_int(w, "state_bytes", m->state_bytes);
    json_pair_int(w, "state_crc32c", m->state_crc32c);
    if (m->has_ema) {
        json_pair_string(w, "ema", m->ema);
        json_pair_int(w, "ema_bytes", m->ema_bytes);
        json_pair_int(w, "ema_crc32c", m->ema_crc32c);
    }
    json_end_object(w);
    return w->status;
}

/* A new link beside the old one, renamed over it: at no moment is there none. The temporary's name
 * is one that file_clean_temporaries() knows. */
static Status replace_link(const char *target, const char *path) {
    static unsigned number;
    void *memory;
    size_t size = strlen(path) + 64;
    TRY(mem_alloc(&memory, (int64_t)size, 1, "path"));
    char *temporary = memory;
    snprintf(temporary, size, "%s.tmp-%ld-9%u", path, (long)getpid(), number++);
    Status s = STATUS_OK;
    if (symlink(target, temporary) != 0)
        s = status_errno("cannot make the link '%s'", path);
    else if (rename(temporary, path) != 0)
        s = status_errno("cannot make the link '%s'", path);
    if (s != STATUS_OK) unlink(temporary);
    mem_free(temporary);
    return s;
}

Status manifest_write(const char *run_folder, const char *which, const Manifest *m) {
    char *path = NULL, *link = NULL;
    JsonWriter w;
    Status s = format(m, &w);
    if (s == STATUS_OK) s = file_path(run_folder, which, ".json", &path);
    if (s == STATUS_OK) s = file_path(run_folder, which, ".safetensors", &link);
    if (s == STATUS_OK) s = file_write_atomic(path, w.text, w.length);
    if (s == STATUS_OK && replace_link(m->weights, link) != STATUS_OK)
        log_warn("%s",
                 status_message()); /* some file systems have no links: nothing depends on it */
    mem_free(link);
    mem_free(path);
    json_writer_free(&w);
    return s;
}
