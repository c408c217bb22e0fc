/* JPEG through libjpeg-turbo: accurate integer DCT and fancy upsampling, the library's (and
 * Pillow's) defaults. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
/* After jpeglib.h: its message numbers depend on jconfig.h. */
#include <jerror.h>

#include "core/memory.h"
#include "datasets/exif.h"
#include "datasets/image_internal.h"

/* Real progressive files have about ten scans; a bomb repeats cheap scans over a large picture. */
enum { MAX_SCANS = 100 };
static const double max_scanned_pixels = 4e9; /* scans x pixels: some tens of seconds */

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

const char *image_jpeg_library(void) {
#ifdef LIBJPEG_TURBO_VERSION
    return "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION);
#else
    return "libjpeg " TEXT(JPEG_LIB_VERSION);
#endif
}

typedef struct JpegReader {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    const Encoded *file;
    bool strict;
    bool out_of_memory;
    uint8_t *cmyk; /* one decoded row before it becomes RGB; NULL: not needed */
    char message[JMSG_LENGTH_MAX];
} JpegReader;

static void escape_with_message(j_common_ptr cinfo) {
    JpegReader *r = cinfo->client_data;
    cinfo->err->format_message(cinfo, r->message);
    r->out_of_memory = cinfo->err->msg_code == JERR_OUT_OF_MEMORY;
    longjmp(r->escape, 1);
}

/* Warnings after which pixels are guesses. The others are about junk between segments and odd
 * headers: Pillow takes such files without a word and their pixels are whole. */
static bool is_damage(int code) {
    switch (code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_BOGUS_PROGRESSION:
        return true;
    default:
        return false;
    }
}

static void on_message(j_common_ptr cinfo, int level) {
    JpegReader *r = cinfo->client_data;
    if (level < 0 && r->strict && is_damage(cinfo->err->msg_code)) escape_with_message(cinfo);
}

/* libjpeg's own printer writes to stderr; nothing here may. */
static void on_output(j_common_ptr cinfo) {
    (void)cinfo;
}

static void on_progress(j_common_ptr common) {
    JpegReader *r = common->client_data;
    int scans = r->cinfo.input_scan_number;
    double pixels = (double)r->cinfo.image_width * r->cinfo.image_height;
    if (scans <= MAX_SCANS && scans * pixels <= max_scanned_pixels) return;
    snprintf(r->message, sizeof r->message,
             "more scans than any sane file has (scan %d of %ux%u pixels)", scans,
             r->cinfo.image_width, r->cinfo.image_height);
    longjmp(r->escape, 1);
}

/* Without longjmp target: call inside a setjmp frame. */
static void reader_start(JpegReader *r) {
    r->cinfo.client_data = r;
    jpeg_create_decompress(&r->cinfo);
    r->cinfo.progress = &r->progress;
    jpeg_mem_src(&r->cinfo, r->file->bytes, (unsigned long)r->file->size);
    jpeg_read_header(&r->cinfo, TRUE);
}

static void reader_init(JpegReader *r, const Encoded *file, bool strict) {
    *r = (JpegReader){.file = file, .strict = strict};
    r->cinfo.err = jpeg_std_error(&r->errors);
    r->cinfo.client_data = r;
    r->errors.error_exit = escape_with_message;
    r->errors.emit_message = on_message;
    r->errors.output_message = on_output;
    r->progress.progress_monitor = on_progress;
}

static void reader_end(JpegReader *r) {
    jpeg_destroy_decompress(&r->cinfo);
    mem_free(r->cmyk);
    r->cmyk = NULL;
}

static Status reader_failed(const JpegReader *r) {
    Status code = r->out_of_memory ? STATUS_MEMORY : STATUS_DATA;
    return status_set(code, "%s: bad JPEG: %s", r->file->name, r->message);
}

static void fill_info(const JpegReader *r, ImageInfo *info) {
    *info = (ImageInfo){
        .format = "jpeg",
        .width = r->cinfo.image_width,
        .height = r->cinfo.image_height,
        .channels = r->cinfo.num_components,
        .bits = r->cinfo.data_precision,
        .orientation = exif_orientation_jpeg(r->file->bytes, r->file->size),
        .progressive_or_interlaced = r->cinfo.progressive_mode,
    };
}

/* Pixels that a byte can stand for at most: a Huffman code has one bit at least, and each block of
 * 8x8 needs a code for DC and one for the end of AC (in progressive files, whose runs of empty
 * blocks cost nothing, for DC only). 170 for baseline 4:2:0, 256 for grey. Arithmetic coding knows
 * no such bound; deflate's is taken. */
static int64_t jpeg_pixels_per_byte(const JpegReader *r) {
    int64_t blocks = 0, largest_h = 1, largest_v = 1;
    if (r->cinfo.arith_code) return PNG_PIXELS_PER_BYTE;
    for (int i = 0; i < r->cinfo.num_components; i++) {
        const jpeg_component_info *c = &r->cinfo.comp_info[i];
        blocks += c->h_samp_factor * c->v_samp_factor;
        if (c->h_samp_factor > largest_h) largest_h = c->h_samp_factor;
        if (c->v_samp_factor > largest_v) largest_v = c->v_samp_factor;
    }
    int64_t bits = blocks * (r->cinfo.progressive_mode ? 1 : 2);
    return 64 * 8 * largest_h * largest_v / bits;
}

static Status check_components(const JpegReader *r) {
    int n = r->cinfo.num_components;
    if (n == 1 || n == 3 || n == 4) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: JPEG with %d components; 1, 3 and 4 are understood",
                      r->file->name, n);
}

Status jpeg_probe(const Encoded *file, ImageInfo *info) {
    JpegReader r;
    reader_init(&r, file, false);
    Status s = STATUS_OK;
    if (setjmp(r.escape) == 0) {
        reader_start(&r);
        fill_info(&r, info);
        s = check_components(&r);
    } else {
        s = reader_failed(&r);
    }
    reader_end(&r);
    return s;
}

/* Round(a * b / 255) for bytes, exact. */
static unsigned mul_255(unsigned a, unsigned b) {
    unsigned t = a * b + 128;
    return (t + (t >> 8)) >> 8;
}

/* Adobe writes CMYK inverted (255 = no ink); without its marker the values are plain. The
 * conversion is Pillow's: each colour is what its ink leaves of the light that black leaves. */
static void cmyk_to_rgb(const uint8_t *cmyk, int64_t pixels, bool inverted, uint8_t *rgb) {
    unsigned flip = inverted ? 255 : 0;
    for (int64_t i = 0; i < pixels; i++, cmyk += 4, rgb += 3) {
        unsigned light = 255 - (cmyk[3] ^ flip);
        for (int c = 0; c < 3; c++) rgb[c] = (uint8_t)(light - mul_255(cmyk[c] ^ flip, light));
    }
}

/* Whole images are decoded, also for random crops. jpeg_crop_scanline and jpeg_skip_scanlines were
 * tried: with the rest still parsed, so that damage is found, a 500x375 file of 98 KB took 0.94
 * to 1.0 ms instead of 0.94 ms, for 70 % of the time goes into the Huffman codes. */
static void read_rows(JpegReader *r, Image *out) {
    j_decompress_ptr cinfo = &r->cinfo;
    while (cinfo->output_scanline < cinfo->output_height) {
        uint8_t *target = out->pixels + (size_t)cinfo->output_scanline * (size_t)out->width * 3;
        JSAMPROW row = r->cmyk != NULL ? r->cmyk : target;
        jpeg_read_scanlines(cinfo, &row, 1);
        if (r->cmyk != NULL) cmyk_to_rgb(row, out->width, cinfo->saw_Adobe_marker, target);
    }
    jpeg_finish_decompress(cinfo);
}

static void prepare(JpegReader *r) {
    j_decompress_ptr cinfo = &r->cinfo;
    cinfo->out_color_space = cinfo->num_components == 4 ? JCS_CMYK : JCS_RGB;
    /* Whole-image coefficient buffers of progressive files: 2 bytes in each of at most 4
     * components, padded to whole MCUs. */
    double padded = ((double)cinfo->image_width + 64) * ((double)cinfo->image_height + 64);
    cinfo->mem->max_memory_to_use = (long)(64e6 + 16 * padded);
}

/* Everything after the header. Leaves by longjmp when libjpeg gives up; all state is in *r and
 * *out. */
static Status decode_body(JpegReader *r, const DecodeJob *job, Image *out) {
    ImageInfo info;
    fill_info(r, &info);
    TRY(check_components(r));
    TRY(image_check_size(job, &info, jpeg_pixels_per_byte(r)));
    if (info.channels == 4) {
        void *row;
        TRY(mem_alloc(&row, info.width, 4, "a row of CMYK pixels"));
        r->cmyk = row;
    }
    prepare(r);
    jpeg_start_decompress(&r->cinfo);
    TRY(image_allocate(job, info.width, info.height, out));
    read_rows(r, out);
    return STATUS_OK;
}

/* What became of a decode that libjpeg gave up: an error, or for the lenient an image black at the
 * bottom. */
static Status decode_broken(const JpegReader *r, Image *out) {
    int64_t done = out->pixels != NULL ? (int64_t)r->cinfo.output_scanline : 0;
    if (r->strict || done == 0 || r->out_of_memory) return reader_failed(r);
    size_t row_bytes = (size_t)out->width * 3;
    memset(out->pixels + (size_t)done * row_bytes, 0, (size_t)(out->height - done) * row_bytes);
    return STATUS_OK;
}

Status jpeg_decode(const DecodeJob *job, Image *out) {
    JpegReader r;
    Status s;
    reader_init(&r, &job->file, job->options->strict);
    if (setjmp(r.escape) == 0) {
        reader_start(&r);
        s = decode_body(&r, job, out);
    } else {
        s = decode_broken(&r, out);
    }
    reader_end(&r);
    if (s != STATUS_OK) image_discard(job, out);
    return s;
}
