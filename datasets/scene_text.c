/* The camera text of RealEstate10K: a URL, then 19 columns a line (lact_nvs.md 12). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/scene_internal.h"

enum { COLUMNS = 19, TOKEN_SHOWN = 64 };

static const char *const column_names[COLUMNS] = {
    "timestamp", "fx",  "fy",  "cx",  "cy", "k1",  "k2",  "r11", "r12", "r13",
    "t1",        "r21", "r22", "r23", "t2", "r31", "r32", "r33", "t3",
};

typedef struct LineReader {
    Scene *scene;
    char *next, *end;
    int64_t line, capacity;
    int64_t last_time, last_line; /* of the camera line before; -1: none */
    bool loose;                   /* scene_internal.h */
} LineReader;

/* Cuts the next line off; CRLF and a missing last newline are fine. */
static char *next_line(LineReader *r) {
    if (r->next >= r->end) return NULL;
    char *line = r->next;
    char *stop = memchr(line, '\n', (size_t)(r->end - line));
    r->next = stop != NULL ? stop + 1 : r->end;
    if (stop == NULL) stop = r->end;
    *stop = '\0';
    r->line++;
    return line;
}

/* Splits at blanks in place; counts all, keeps the first COLUMNS. */
static int split_blanks(char *line, char *tokens[COLUMNS]) {
    static const char blanks[] = " \t\r\v\f";
    int count = 0;
    for (char *at = line + strspn(line, blanks); *at != '\0'; at += strspn(at, blanks)) {
        if (count < COLUMNS) tokens[count] = at;
        count++;
        at += strcspn(at, blanks);
        if (*at == '\0') break;
        *at++ = '\0';
    }
    return count;
}

static Status bad_column(LineReader *r, int column, const char *token, const char *why) {
    char shown[TOKEN_SHOWN];
    return scene_fault(r->scene, "%s:%lld: column %d (%s): '%s' %s", r->scene->camera_file,
                       (long long)r->line, column + 1, column_names[column],
                       text_printable(token, shown, sizeof shown), why);
}

static bool parse_time(const char *token, int64_t *value) {
    size_t n = strspn(token, "0123456789");
    if (n == 0 || n > 18 || token[n] != '\0') return false;
    *value = strtoll(token, NULL, 10);
    return true;
}

static bool parse_number(const char *token, double *value) {
    char *stop;
    *value = strtod(token, &stop);
    return stop != token && *stop == '\0';
}

/* All 18 numbers behind the timestamp; *good: every one is a finite number. */
static Status read_numbers(LineReader *r, char *tokens[COLUMNS], double *value, bool *good) {
    for (int c = 1; c < COLUMNS; c++) {
        const char *why = NULL;
        if (!parse_number(tokens[c], &value[c]))
            why = "is no number";
        else if (!isfinite(value[c]))
            why = "is not finite";
        else if ((c == 5 || c == 6) && value[c] != 0)
            why = "is lens distortion, which is not supported (0 is expected)";
        if (why == NULL) continue;
        *good = false;
        TRY(bad_column(r, c, tokens[c], why));
    }
    return STATUS_OK;
}

/* Focal lengths and centres divided by the picture's size are around 1. */
static Status check_normalised(LineReader *r, char *tokens[COLUMNS], const double *value,
                               bool *good) {
    for (int c = 1; c <= 4; c++) {
        if (fabs(value[c]) <= 5) continue;
        *good = false;
        return bad_column(r, c, tokens[c],
                          "looks like pixels; intrinsics divided by width and height are expected");
    }
    return STATUS_OK;
}

static Status check_order(LineReader *r, char *tokens[COLUMNS], int64_t time, bool *good) {
    int64_t before = r->last_time;
    r->last_time = time;
    if (before < 0 || time > before || r->loose) return STATUS_OK;
    char why[96];
    *good = false;
    snprintf(why, sizeof why, "%s line %lld",
             time == before ? "repeats the timestamp of" : "is earlier than",
             (long long)r->last_line);
    return bad_column(r, 0, tokens[0], why);
}

static Status read_camera(LineReader *r, char *tokens[COLUMNS]) {
    SceneFrame f = {.line = r->line, .image = -1, .width = 1, .height = 1};
    double value[COLUMNS];
    bool good = true;
    char place[800];
    if (!parse_time(tokens[0], &f.time)) {
        good = false;
        TRY(bad_column(r, 0, tokens[0], "is no timestamp (microseconds, a whole number)"));
    } else {
        TRY(check_order(r, tokens, f.time, &good));
    }
    r->last_line = r->line;
    TRY(read_numbers(r, tokens, value, &good));
    if (!good) return STATUS_OK;
    TRY(check_normalised(r, tokens, value, &good));
    if (!good) return STATUS_OK;
    f.fx = value[1];
    f.fy = value[2];
    f.cx = value[3];
    f.cy = value[4];
    memcpy(f.w2c, value + 7, sizeof f.w2c);
    snprintf(place, sizeof place, "%s:%lld", r->scene->camera_file, (long long)r->line);
    TRY(scene_check_camera(r->scene, &f, place, true, &good));
    return good ? scene_add_frame(r->scene, &f, &r->capacity) : STATUS_OK;
}

static Status read_line(LineReader *r, char *line) {
    char *tokens[COLUMNS];
    int count = split_blanks(line, tokens);
    if (count == 0) return STATUS_OK; /* blank lines separate nothing here */
    if (count == COLUMNS) return read_camera(r, tokens);
    return scene_fault(r->scene,
                       "%s:%lld: %d columns; %d are expected (timestamp, fx fy cx cy, 0 0, 3x4 "
                       "matrix); %s column %d",
                       r->scene->camera_file, (long long)r->line, count, COLUMNS,
                       count < COLUMNS ? "missing from" : "surplus from",
                       count < COLUMNS ? count + 1 : COLUMNS + 1);
}

/* Line 1. A camera line in its place would shift every index number by one. */
static Status read_url(LineReader *r) {
    char *tokens[COLUMNS];
    char *line = next_line(r);
    if (line == NULL) return scene_fault(r->scene, "%s: an empty file", r->scene->camera_file);
    char *copy;
    TRY(mem_string(&copy, line));
    int64_t time;
    int count = split_blanks(copy, tokens);
    bool camera = count > 1 && parse_time(tokens[0], &time);
    mem_free(copy);
    if (camera && r->loose) return read_line(r, line);
    if (camera)
        return scene_fault(r->scene, "%s:1: a URL is expected, a camera line is there",
                           r->scene->camera_file);
    mem_free(r->scene->url);
    r->scene->url = NULL;
    return mem_string_n(&r->scene->url, line, strcspn(line, "\r"));
}

Status scene_read_text(Scene *s, const char *text, size_t size, bool loose) {
    char *copy;
    if (memchr(text, '\0', size) != NULL)
        return scene_fault(s, "%s: a NUL byte: not a text file", s->camera_file);
    TRY(mem_string_n(&copy, text, size));
    LineReader r = {.scene = s, .next = copy, .end = copy + size, .last_time = -1, .loose = loose};
    if (size >= 3 && memcmp(copy, "\xEF\xBB\xBF", 3) == 0) r.next += 3;
    Status status = read_url(&r);
    for (char *line; status == STATUS_OK && (line = next_line(&r)) != NULL;)
        status = read_line(&r, line);
    mem_free(copy);
    if (status == STATUS_OK && s->count == 0 && s->fault_count == 0)
        status = scene_fault(s, "%s: only a URL, no camera lines", s->camera_file);
    return status;
}
