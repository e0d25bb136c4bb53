// SPDX-License-Identifier: Apache-2.0
// frame_pool.hpp - the physical frames of one node that back nothing at the moment.
//
// Model    A frame freed is kept for the next request of its size; all pools of the node together keep up to the
//          largest `kept_bytes` among them, and beyond that who keeps most drops. A request that the ledger or the
//          driver refuses drops frames of other sizes first, then those that other pools of the process keep on
//          the node. Creation is charged to the node's ledger before the driver is asked.
// Threads  Any. One lock, rank frame_pool, guards the list; it is not held while the driver creates or drops a
//          frame, so that several threads may do so at once.
// Failure  take() is all or nothing; it never reclaims: the caller does, and tries again.
#pragma once

#include <xmm/concepts/backend_table.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/mapping/frame_record.hpp>
#include <xmm/mapping/ledger.hpp>
#include <xmm/mapping/slab.hpp>

namespace xmm {

class frame_pool final : private frame_keeper {
public:
    frame_pool() = default;
    frame_pool(const frame_pool&) = delete;
    frame_pool& operator=(const frame_pool&) = delete;
    ~frame_pool() { close(); }

    // Before any other call; again only if nobody took a frame.
    void open(backend_ref driver, node_id node, std::uint8_t slot, bool is_host, ledger& book,
              std::size_t kept_bytes) noexcept {
        close();
        driver_ = driver;
        node_ = node;
        slot_ = slot;
        is_host_ = is_host;
        book_ = &book;
        book.add_keeper(*this, kept_bytes);
    }

    [[nodiscard]] result<frame_record*> take(std::size_t bytes) noexcept {
        if (frame_record* kept = with(lock_, [&] { return take_kept_locked(bytes); })) {
            return kept;
        }
        do {
            const ledger::change under_way{*book_};
            if (book_->try_reserve(bytes)) {
                return create(bytes);
            }
        } while (drop_any());
        return fail(errc::no_memory, "the node's budget is used up");
    }

    // The frame backs nothing any more and is mapped nowhere. Its contents are stale.
    void give_back(frame_record& record) noexcept {
        XMM_ASSERT(record.owner == nullptr, "a frame in the pool still backs pages");
        XMM_ASSERT(!record.is_coming, "a frame in the pool still counts as on its way");
        record.backing.zeroed = false;
        with(lock_, [&] {
            free_.push_back(record);
            count_free_locked(static_cast<std::ptrdiff_t>(record.backing.bytes));
        });
        book_->drop_excess();
        while (book_->used() > book_->limit() && drop_oldest()) {
        }
    }

    // Drops free frames until at most `kept` bytes of them are left.
    void trim(std::size_t kept) noexcept {
        while (free_bytes() > kept && drop_oldest()) {
        }
    }
    [[nodiscard]] std::size_t free_bytes() const noexcept {
        std::lock_guard guard{lock_};
        return free_bytes_;
    }

private:
    void close() noexcept {
        if (book_ != nullptr) {
            book_->remove_keeper(*this);  // first: from now on we drop them alone, uncounted
            while (frame_record* one = with(lock_, [&] { return free_.pop_front(); })) {
                drop(*one);
            }
            free_bytes_ = 0;
        }
    }
    frame_record* take_kept_locked(std::size_t bytes) noexcept {
        // The last one: freed latest, its contents nearest to the caches.
        frame_record* kept =
            free_.find_last([&](const frame_record& one) { return one.backing.bytes == bytes; });
        if (kept != nullptr) {
            free_.remove(*kept);
            count_free_locked(-static_cast<std::ptrdiff_t>(bytes));
        }
        return kept;
    }
    void count_free_locked(std::ptrdiff_t bytes) noexcept {
        free_bytes_ += static_cast<std::size_t>(bytes);
        book_->count_kept(*this, bytes);
    }
    // The bytes are reserved.
    result<frame_record*> create(std::size_t bytes) noexcept {
        frame_record* record = records_.make();
        if (record == nullptr) {
            book_->release(bytes);
            return fail(errc::no_memory, "the host has no memory for a frame's record");
        }
        for (;;) {
            const result<frame> made = driver_.frame_create(node_, bytes);
            if (made) {
                return fill(*record, *made);
            }
            // The driver may have less than the ledger believed: others hold memory unseen.
            if (made.code() != errc::no_memory || !drop_any()) {
                records_.give_back(record);
                book_->release(bytes);
                return made.error();
            }
        }
    }
    frame_record* fill(frame_record& record, const frame& made) noexcept {
        record.backing = made;
        record.slot = slot_;
        record.is_host = is_host_;
        record.is_coming = false;
        record.owner = nullptr;
        record.link = {};
        return &record;
    }
    // A free frame of ours, or else of some other pool on this node.
    bool drop_any() noexcept { return drop_oldest() || book_->drop_free_frame(); }
    bool drop_oldest() noexcept override {
        frame_record* oldest = with(lock_, [&] {
            frame_record* first = free_.pop_front();
            if (first != nullptr) {
                count_free_locked(-static_cast<std::ptrdiff_t>(first->backing.bytes));
            }
            return first;
        });
        if (oldest == nullptr) {
            return false;
        }
        drop(*oldest);
        return true;
    }
    void drop(frame_record& one) noexcept {
        const ledger::change under_way{*book_};
        driver_.frame_drop(one.backing);
        book_->release(one.backing.bytes);
        one.backing = {};
        records_.give_back(&one);
    }

    mutable ranked_mutex<lock_rank::frame_pool> lock_;
    frame_list free_;  // guarded by lock_, as the two below; freed earliest first
    std::size_t free_bytes_ = 0;
    slab<frame_record> records_;
    // Constant after open().
    backend_ref driver_;
    node_id node_ = no_node;
    std::uint8_t slot_ = 0;
    bool is_host_ = false;
    ledger* book_ = nullptr;
};

}  // namespace xmm
